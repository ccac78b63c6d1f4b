"""Pinned buffers of one batch in flight: all it uploads in one piece, all it downloads in one piece."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Layout", "Staging", "Upload", "stages_s"]

# Kernels are compiled for addresses that are multiples of 16; a cache line of the device holds 128 bytes.
ALIGNMENT_BYTES = 256
_FIRST_BYTES = 1 << 20

# First byte, shape [n] or [n, d], dtype.
Block = tuple[int, tuple[int, ...], torch.dtype]


class Layout:
    """Where each tensor of an upload lies. `add` returns its number."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.sources: list[torch.Tensor] = []
        self.size_bytes = 0

    def add(self, source: torch.Tensor, dtype: torch.dtype) -> int:
        """A host tensor, to be converted to `dtype` on its way."""
        self.blocks.append((self.size_bytes, tuple(source.shape), dtype))
        self.sources.append(source)
        used = source.numel() * dtype.itemsize
        self.size_bytes += -(-used // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return len(self.blocks) - 1


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

    def upload(self, layout: Layout) -> Upload:
        """Enqueue one copy of everything in the layout on the current stream."""
        if layout.size_bytes > len(self._up):
            size = _capacity(layout.size_bytes)
            self._on_device = _Buffer(torch.empty(size, dtype=torch.uint8, device=self._device))
            self._up = _Buffer(torch.empty(size, dtype=torch.uint8, pin_memory=True))
        for block, source in zip(layout.blocks, layout.sources, strict=True):
            self._up.view(block).copy_(source)
        used = layout.size_bytes
        self._on_device.bytes[:used].copy_(self._up.bytes[:used], non_blocking=True)
        return Upload(self._on_device, layout.blocks)

    def download(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[np.generic]]:
        """Enqueue a copy of each tensor → arrays that hold it once the stream has come so far.

        They are views of the pinned buffer: copy what outlives the batch.
        """
        blocks: list[Block] = []
        size = 0
        for tensor in tensors:
            blocks.append((size, tuple(tensor.shape), tensor.dtype))
            size += -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if size > len(self._down):
            self._down = _Buffer(torch.empty(_capacity(size), dtype=torch.uint8, pin_memory=True))
        views = [self._down.view(block) for block in blocks]
        for view, tensor in zip(views, tensors, strict=True):
            view.copy_(tensor, non_blocking=True)
        return [view.numpy() for view in views]


def stages_s(names: Sequence[str], marks: Sequence[torch.cuda.Event]) -> dict[str, float]:
    """Seconds of each stage, the first between the first two marks; all of them have been passed."""
    spans = zip(names, marks, marks[1:], strict=False)
    return {name: 1e-3 * begin.elapsed_time(end) for name, begin, end in spans}


def _capacity(size_bytes: int) -> int:
    return max(_FIRST_BYTES, 1 << (size_bytes - 1).bit_length())
