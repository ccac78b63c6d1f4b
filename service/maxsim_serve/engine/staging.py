"""Pinned buffers of one batch in flight: all it uploads in one piece, all it downloads in one piece."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maxsim.crew import helpers

from .worklist import joined

try:
    from . import _fill
except ImportError:
    compiled = False
else:
    compiled = True

__all__ = ["Layout", "Staging", "Upload", "fill", "stages_s", "write_through"]

# Kernels are compiled for addresses that are multiples of 16; a cache line of the device holds 128 bytes.
ALIGNMENT_BYTES = 256
_FIRST_BYTES = 1 << 20

# First byte, shape [n] or [n, d], dtype.
Block = tuple[int, tuple[int, ...], torch.dtype]

# What NumPy calls the same; it has no bfloat16.
_SAME: Mapping[torch.dtype, np.dtype[Any]] = {
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.int64: np.dtype(np.int64),
}


def fill(buffer: NDArray[np.uint8], places: list[int], arrays: list[NDArray[Any]], helpers: int = 0) -> None:
    """Copy contiguous arrays, each to its first byte in the buffer; of many, as many others may help."""
    if compiled:
        _fill.fill(buffer, places, arrays, helpers)
        return
    for first, array in zip(places, arrays, strict=False):
        buffer[first : first + array.nbytes] = array.reshape(-1).view(np.uint8)


def write_through(buffer: NDArray[Any], array: NDArray[Any]) -> None:
    """Copy an array to one of its shape and dtype in pinned memory, past the caches: the device reads it from
    there in half the time."""
    if compiled:
        _fill.write_through(buffer, np.ascontiguousarray(array))
    else:
        buffer[...] = array


class Layout:
    """Where each tensor of an upload lies, and what is written there. What adds one returns its number."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        # To be converted to their blocks' dtypes.
        self.tensors: list[tuple[Block, torch.Tensor]] = []
        # To be copied as they are, each to a first byte.
        self.arrays: list[NDArray[np.generic]] = []
        self.places: list[int] = []
        self.size_bytes = 0

    def tensor(self, source: torch.Tensor, dtype: torch.dtype) -> int:
        """A host tensor, to be converted to `dtype` on its way."""
        block = self._add(tuple(source.shape), dtype)
        self.tensors.append((block, source))
        return len(self.blocks) - 1

    def rows(self, matrices: Sequence[NDArray[np.generic]], dtype: torch.dtype) -> int:
        """Matrices [n_i, d], one after the other; copied once, where all are of `dtype` already."""
        if {matrix.dtype for matrix in matrices} != {_SAME.get(dtype)}:
            return self.tensor(torch.from_numpy(joined(matrices)), dtype)
        self._add((self._put(matrices, dtype) // matrices[0].shape[1], matrices[0].shape[1]), dtype)
        return len(self.blocks) - 1

    def numbers(self, *lists: Sequence[NDArray[np.int64]]) -> range:
        """Of each list its arrays, one after the other."""
        first = len(self.blocks)
        for arrays in lists:
            self._add((self._put(arrays, torch.int64),), torch.int64)
        return range(first, len(self.blocks))

    def _put(self, arrays: Sequence[NDArray[np.generic]], dtype: torch.dtype) -> int:
        """One after the other into the block that is added next → how many values."""
        *firsts, end = accumulate([array.nbytes for array in arrays], initial=self.size_bytes)
        self.places += firsts
        self.arrays += arrays
        return (end - self.size_bytes) // dtype.itemsize

    def _add(self, shape: tuple[int, ...], dtype: torch.dtype) -> Block:
        block = (self.size_bytes, shape, dtype)
        self.blocks.append(block)
        used_bytes = math.prod(shape) * dtype.itemsize
        self.size_bytes += -(-used_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return block


class Upload:
    """The tensors of a layout on the device, by their numbers."""

    def __init__(self, buffer: "_Buffer", blocks: Sequence[Block]) -> None:
        self._buffer = buffer
        self._blocks = blocks

    def __getitem__(self, number: int) -> torch.Tensor:
        return self._buffer.view(self._blocks[number])


class _Buffer:
    """Bytes, seen as tensors: a dtype is viewed once, for a view of a view costs more than all the rest."""

    def __init__(self, data: torch.Tensor) -> None:
        self.bytes = data
        self._typed: dict[torch.dtype, torch.Tensor] = {}

    def __len__(self) -> int:
        return self.bytes.numel()

    def view(self, block: Block) -> torch.Tensor:
        offset, shape, dtype = block
        typed = self._typed.get(dtype)
        if typed is None:
            typed = self._typed[dtype] = self.bytes.view(dtype)
        strides = (1,) if len(shape) == 1 else (shape[1], 1)
        return typed.as_strided(shape, strides, offset // dtype.itemsize)

    def array(self, block: Block) -> NDArray[np.generic]:
        """The same in NumPy, of host memory."""
        offset, shape, dtype = block
        return np.ndarray(shape, _SAME[dtype], self.host, offset)

    @cached_property
    def host(self) -> NDArray[np.uint8]:
        return self.bytes.numpy()


class Staging:
    """A pinned buffer up, its twin on the device, and a pinned buffer down.

    They belong to one batch from its launch until it has been waited for: never write one before. They only
    grow, to the next power of two.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._up = self._on_device = self._down = _Buffer(torch.empty(0, dtype=torch.uint8))

    @property
    def device_bytes(self) -> int:
        return len(self._on_device)

    def fill(self, layout: Layout) -> None:
        """Put everything in the layout into its place, here on the host."""
        if layout.size_bytes > len(self._up):
            size = _capacity(layout.size_bytes)
            self._on_device = _Buffer(torch.empty(size, dtype=torch.uint8, device=self._device))
            self._up = _Buffer(torch.empty(size, dtype=torch.uint8, pin_memory=True))
        for block, tensor in layout.tensors:
            self._up.view(block).copy_(tensor)
        fill(self._up.host, layout.places, layout.arrays, helpers())

    def upload(self, layout: Layout) -> Upload:
        """Enqueue one copy of all that was filled in on the current stream."""
        used = layout.size_bytes
        self._on_device.bytes[:used].copy_(self._up.bytes[:used], non_blocking=True)
        return Upload(self._on_device, layout.blocks)

    def download(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[np.generic]]:
        """Enqueue a copy of each tensor → arrays that hold it once the stream has come so far.

        They are views of the pinned buffer: copy what outlives the next batch's launch.
        """
        blocks: list[Block] = []
        size = 0
        for tensor in tensors:
            blocks.append((size, tuple(tensor.shape), tensor.dtype))
            size += -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if size > len(self._down):
            self._down = _Buffer(torch.empty(_capacity(size), dtype=torch.uint8, pin_memory=True))
        for block, tensor in zip(blocks, tensors, strict=True):
            self._down.view(block).copy_(tensor, non_blocking=True)
        return [self._down.array(block) for block in blocks]


def stages_s(names: Sequence[str], marks: Sequence[torch.cuda.Event]) -> dict[str, float]:
    """Seconds of each stage, the first between the first two marks; all of them have been passed."""
    spans = zip(names, marks, marks[1:], strict=False)
    return {name: 1e-3 * begin.elapsed_time(end) for name, begin, end in spans}


def _capacity(size_bytes: int) -> int:
    return max(_FIRST_BYTES, 1 << (size_bytes - 1).bit_length())
