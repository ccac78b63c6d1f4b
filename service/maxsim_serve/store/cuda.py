"""The GPU's two kinds of memory: host memory that its kernels read in place, and memory on the device.

All calls into the driver that the store makes are here. The copies run on a stream of the store's own and are
waited for, so that rows are in place for every stream before anybody is told of them.
"""

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import OutOfSpace
from .memory import Bytes, HostMemory
from .space import Budget
from .tier import Tier

__all__ = ["SLAB_BYTES", "STAGING_BYTES", "DeviceMemory", "PinnedMemory", "device_view", "gpu_tiers"]

SLAB_BYTES = 256 << 20
"""Pinned memory is registered in slabs of this size, from the first byte on. A kernel reads across slabs;
an asynchronous copy must end where a slab ends."""

STAGING_BYTES = 16 << 20
_STAGING_BUFFERS = 2  # one is filled while the other is copied
_KEPT_BACK_SHARE, _KEPT_BACK_SEGMENTS = 8, 4
_PORTABLE, _MAPPED = 1, 2  # flags of cudaHostRegister


class PinnedMemory(HostMemory):
    """Host memory whose slabs are pinned while any of their bytes is in use."""

    block_bytes = SLAB_BYTES

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        super().__init__(-(-size_bytes // SLAB_BYTES) * SLAB_BYTES)
        assert self.host_bytes is not None
        self._device = device
        self._address = self.host_bytes.data_ptr()
        self._pinned: set[int] = set()
        self.occupy(0, 1)  # the driver knows an address once it is registered
        self.kernel_bytes = device_view(self.host_bytes, device)

    def occupy(self, begin: int, end: int) -> None:
        for slab in range(begin // SLAB_BYTES, -(-end // SLAB_BYTES)):
            if slab not in self._pinned:
                self._register(slab)
                self._pinned.add(slab)

    def vacate(self, begin: int, end: int) -> None:
        for slab in range(begin // SLAB_BYTES, end // SLAB_BYTES):
            if slab and slab in self._pinned:  # the first stays: the tensors begin there
                self._pinned.discard(slab)
                with torch.cuda.device(self._device):
                    torch.cuda.check_error(
                        int(torch.cuda.cudart().cudaHostUnregister(self._address + slab * SLAB_BYTES))
                    )
                super().vacate(slab * SLAB_BYTES, (slab + 1) * SLAB_BYTES)

    def close(self) -> None:
        """Unpin everything; no kernel may run any more."""
        for slab in sorted(self._pinned):
            torch.cuda.cudart().cudaHostUnregister(self._address + slab * SLAB_BYTES)
        self._pinned.clear()

    def _register(self, slab: int) -> None:
        address = self._address + slab * SLAB_BYTES
        with torch.cuda.device(self._device):
            code = int(torch.cuda.cudart().cudaHostRegister(address, SLAB_BYTES, _PORTABLE | _MAPPED))
        if code:
            raise MemoryError(f"cudaHostRegister of {SLAB_BYTES:,} bytes failed with code {code}")


class DeviceMemory:
    """One allocation on the device. Rows go there through pinned buffers, two of them."""

    block_bytes = 1
    host_bytes: torch.Tensor | None = None

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        """Raises MemoryError where the device has not that much."""
        try:
            self.kernel_bytes = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error
        self.size_bytes = size_bytes
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._buffers: queue.LifoQueue[torch.Tensor] = queue.LifoQueue()
        for _ in range(_STAGING_BUFFERS):
            self._buffers.put(_pinned(STAGING_BYTES))

    def occupy(self, begin: int, end: int) -> None:
        pass

    def vacate(self, begin: int, end: int) -> None:
        pass

    @contextmanager
    def landing(self, begin: int, end: int) -> Iterator[Bytes]:
        with self._staging(end - begin) as buffer:
            yield buffer.numpy()
            with torch.cuda.stream(self._stream):
                self.kernel_bytes[begin:end].copy_(buffer, non_blocking=True)
            self._wait()

    def read(self, begin: int, end: int) -> Bytes:
        with self._staging(end - begin) as buffer:
            with torch.cuda.stream(self._stream):
                buffer.copy_(self.kernel_bytes[begin:end], non_blocking=True)
            self._wait()
            copy: NDArray[np.uint8] = buffer.numpy().copy()
            return copy

    def _wait(self) -> None:
        event = torch.cuda.Event()
        event.record(self._stream)
        event.synchronize()

    @contextmanager
    def _staging(self, size_bytes: int) -> Iterator[torch.Tensor]:
        """A pinned buffer of this size, once one is free. One too small is replaced, for good."""
        buffer = self._buffers.get()
        try:
            if size_bytes > len(buffer):
                buffer = _pinned(size_bytes)
            yield buffer[:size_bytes]
        finally:
            self._buffers.put(buffer)


def _pinned(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


@contextmanager
def _full_memory_raises(setting: str, value: int) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise OutOfSpace(f"{setting} = {value:,} is more than can be had: {error}", param=setting) from error


def gpu_tiers(
    device: torch.device, *, host_budget_bytes: int, gpu_budget_bytes: int, segment_bytes: int
) -> dict[str, Tier]:
    """Both tiers of a machine with a GPU. The device's keeps back some of its bytes, to compact when full.

    Raises OutOfSpace where the device has not that much.
    """
    kept_back_bytes = min(gpu_budget_bytes // _KEPT_BACK_SHARE, _KEPT_BACK_SEGMENTS * segment_bytes)
    with _full_memory_raises("gpu_budget_bytes", gpu_budget_bytes):
        memory = DeviceMemory(gpu_budget_bytes, device)
    with _full_memory_raises("host_budget_bytes", host_budget_bytes):
        pinned = PinnedMemory(host_budget_bytes + host_budget_bytes // 2 + SLAB_BYTES, device)
    return {
        "gpu": Tier("gpu", memory, Budget(gpu_budget_bytes - kept_back_bytes, "gpu_budget_bytes")),
        "host": Tier("host", pinned, Budget(host_budget_bytes, "host_budget_bytes")),
    }


@dataclass(frozen=True)
class _Interface:
    """What the CUDA array interface asks of an object that has memory on a device. The tensor keeps it."""

    __cuda_array_interface__: Mapping[str, object]
    owner: torch.Tensor


def device_view(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Host memory uint8 [n], registered at its first byte, as a tensor that passes for one of the device.

    Nothing is copied: device and host have one address for it. Whoever holds the view keeps the memory.
    """
    address = host.data_ptr()
    interface = {
        "shape": (len(host),),
        "typestr": "|u1",
        "data": (address, False),
        "strides": None,
        "version": 3,
    }
    view = torch.as_tensor(_Interface(interface, host), device=device)
    if view.data_ptr() != address:
        raise MemoryError("the driver gives host memory another address on the device: tier host needs one")
    return view
