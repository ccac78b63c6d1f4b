"""Where token rows are resident: one range of addresses a tier. Here host memory; `cuda` has the GPU's kinds.

A memory hands out nothing by itself (`extents` does). It says where its bytes are, and takes notice of which
of them are in use.
"""

import mmap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Bytes", "HostMemory", "Memory"]

Bytes = NDArray[np.uint8]

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on


class Memory(Protocol):
    """The driver's edge: all that the store asks of a device. Offsets and sizes are in bytes.

    `kernel_bytes` uint8 [size_bytes] is what a kernel is given; `host_bytes` are the same bytes as host
    memory, None where they are on the device alone. `vacate` takes whole blocks of `block_bytes`.
    """

    size_bytes: int
    block_bytes: int
    kernel_bytes: torch.Tensor
    host_bytes: torch.Tensor | None

    def occupy(self, begin: int, end: int) -> None:
        """Make these bytes usable. Raises MemoryError where there is no memory for them."""

    def vacate(self, begin: int, end: int) -> None:
        """Nobody uses these blocks any more: give their memory back, where that can be done."""

    def landing(self, begin: int, end: int) -> AbstractContextManager[Bytes]:
        """Bytes to be filled in the body; when it has ended they are in place for every reader."""

    def read(self, begin: int, end: int) -> Bytes:
        """The bytes, in place or a copy; to be read only."""


class HostMemory:
    """Addresses without memory: the system gives it page by page as rows are written, and takes it back."""

    block_bytes = mmap.PAGESIZE

    def __init__(self, size_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, size_bytes, flags=flags)
        self.size_bytes = size_bytes
        self.host_bytes: torch.Tensor | None = torch.frombuffer(self._map, dtype=torch.uint8)
        self.kernel_bytes = self.host_bytes
        self._bytes: Bytes = np.frombuffer(self._map, np.uint8)

    def occupy(self, begin: int, end: int) -> None:
        pass

    def vacate(self, begin: int, end: int) -> None:
        self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    @contextmanager
    def landing(self, begin: int, end: int) -> Iterator[Bytes]:
        yield self._bytes[begin:end]

    def read(self, begin: int, end: int) -> Bytes:
        return self._bytes[begin:end]
