"""Pinned memory for long queries: a request's rows are written there once, a graph's kernel fetches them."""

import weakref
from collections import deque
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from ..store import device_view

__all__ = ["STEP", "LongQueries"]

STEP = 128
"""Long queries are counted in as many rows at a time, the rest of which are zeros: those add exactly 0 to the
score of a document of finite rows, and a kernel takes no fewer at once."""

_TORCH = {np.dtype(np.float16): torch.float16, np.dtype(np.float32): torch.float32}
_PLACES = 16
_PLACE_BYTES = 1 << 20


class LongQueries:
    """Places of 1 MiB in one tensor of host memory, [places, bytes]; the first `own` are the launcher's.

    A query has its place for as long as there is a reference to its array, or to a view of it.
    """

    def __init__(self, own: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._places = torch.zeros(own + _PLACES, _PLACE_BYTES, dtype=torch.uint8, pin_memory=pinned)
        self._device = device
        self._free = deque(range(own, own + _PLACES))
        self._place_of: dict[int, int] = {}  # of the id of a living array

    @staticmethod
    def takes(size_bytes: int) -> bool:
        return size_bytes <= _PLACE_BYTES

    def room(self, shape: tuple[int, int], dtype: np.dtype[np.generic]) -> NDArray[np.generic] | None:
        """An array in a place of its own, None where there is none; from any thread."""
        rows, columns = shape
        step_bytes = -(-rows // STEP) * STEP * columns * dtype.itemsize
        if not self.takes(step_bytes):
            return None
        try:
            place = self._free.popleft()
        except IndexError:
            return None
        memory = self._places[place]
        used_bytes = rows * columns * dtype.itemsize
        memory[used_bytes:step_bytes] = 0
        # A view of an array refers to what that is a view of, where it is one itself: not of another array.
        array = memory[:used_bytes].view(_TORCH[dtype]).view(shape).numpy()
        key = id(array)
        self._place_of[key] = place
        weakref.finalize(array, self._leave, key).atexit = False
        return array

    def _leave(self, key: int) -> None:
        self._free.append(self._place_of.pop(key))

    def place(self, query: NDArray[np.generic], dtype: torch.dtype, own: int) -> int:
        """Where the query's rows stand in this dtype: its place, or the launcher's `own`, to which they are
        copied."""
        place = self._place_of.get(id(query))
        if place is not None and _TORCH[query.dtype] == dtype:
            return place
        source = torch.from_numpy(query)
        rows = self._places[own].view(dtype)
        rows[: source.numel()].view(source.shape).copy_(source)
        rows[source.numel() : -(-len(query) // STEP) * STEP * query.shape[1]] = 0
        return own

    @cached_property
    def on_device(self) -> torch.Tensor:
        """The places, int64 [places, bytes / 8], for the device's kernels to read in place."""
        view = device_view(self._places.view(-1), self._device)
        return view.view(torch.int64).view(len(self._places), -1)
