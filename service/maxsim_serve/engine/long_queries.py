"""Pinned memory for long queries: a request's rows are written there once, a graph's kernel fetches them."""

import ctypes
import weakref
from collections import deque
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray

from ..store import device_view
from .staging import write_through

__all__ = ["STEP", "LongQueries"]

STEP = 128
"""Long queries are counted in as many rows at a time, the rest of which are zeros: those add exactly 0 to the
score of a document of finite rows, and a kernel takes no fewer at once."""

# Queries are float16 or float32; NumPy has no bfloat16.
_NUMPY_BYTES = {torch.float16: 2, torch.float32: 4}
_PLACES = 16
_PLACE_BYTES = 1 << 20
_Place = ctypes.c_ubyte * _PLACE_BYTES


class LongQueries:
    """Places of 1 MiB in one tensor of host memory, [places, bytes]; the first `own` are the launcher's.

    A query has its place for as long as there is a reference to its array, or to a view of it.
    """

    def __init__(self, own: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._places = torch.zeros(own + _PLACES, _PLACE_BYTES, dtype=torch.uint8, pin_memory=pinned)
        self._device = device
        self._memory = self._places.view(-1).numpy().data
        self._free = deque(range(own, own + _PLACES))
        # By the ids of living arrays: the place of each, and what tells of its end.
        self._taken: dict[int, tuple[int, weakref.ref[NDArray[np.generic]]]] = {}

    @staticmethod
    def takes(size_bytes: int) -> bool:
        return size_bytes <= _PLACE_BYTES

    def placed(self, query: NDArray[np.generic], dtype: np.dtype[np.generic]) -> NDArray[np.generic] | None:
        """The query in a place of its own, None where there is none; from any thread."""
        rows, columns = query.shape
        row_bytes = columns * dtype.itemsize
        used_bytes, step_bytes = rows * row_bytes, -(-rows // STEP) * STEP * row_bytes
        if not self.takes(step_bytes):
            return None
        try:
            place = self._free.popleft()
        except IndexError:
            return None
        memory = _Place.from_buffer(self._memory, place * _PLACE_BYTES)
        ctypes.memset(ctypes.addressof(memory) + used_bytes, 0, step_bytes - used_bytes)
        # No view of another array: its own views refer to it.
        array: NDArray[np.generic] = np.ndarray(query.shape, dtype, memory)  # type: ignore[arg-type]
        write_through(array, query.astype(dtype, copy=False))
        key = id(array)
        self._taken[key] = place, weakref.ref(array, partial(self._leave, key))
        return array

    def _leave(self, key: int, _: object) -> None:
        self._free.append(self._taken.pop(key)[0])

    def place(self, query: NDArray[np.generic], dtype: torch.dtype, own: int) -> int:
        """Where the query's rows stand in this dtype: its place, or the launcher's `own`, to which they are
        copied."""
        taken = self._taken.get(id(query))
        if taken is not None and query.itemsize == _NUMPY_BYTES.get(dtype):
            return taken[0]
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
