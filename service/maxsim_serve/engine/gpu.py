"""Scores on a GPU: a request by itself as a CUDA graph, many of them as one batch of plain launches."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

import maxsim

from .batch import Lane
from .forms import query_dtype, shared_rows
from .graphs import Graphs
from .long_queries import LongQueries
from .scorer import Launched, Request, Scored

__all__ = ["GpuScorer"]

DEPTH = 2


class GpuScorer:
    """Scores on one CUDA device, on one stream.

    `query_dtype` "stored" rounds a query to the dtype of the documents it meets, so that the tensor cores
    take both as they are; "float32" keeps it, at a quarter to a seventh of the speed. A query that float16
    cannot hold is kept in either case.
    """

    depth = DEPTH

    def __init__(self, device: torch.device, query_dtype: Literal["stored", "float32"]) -> None:
        self.device = device
        self._keep_float32 = query_dtype == "float32"
        self._stream = torch.cuda.Stream(device)
        self._lanes = [Lane(device, self._stream, self.rounded) for _ in range(DEPTH)]
        self._long_queries = LongQueries(DEPTH, device)
        self._graphs = Graphs(device, self._stream, DEPTH, self._long_queries)
        self._free = list(range(DEPTH))

    @property
    def staging_bytes(self) -> int:
        """Device memory that uploads go to."""
        return self._graphs.device_bytes + sum(lane.device_bytes for lane in self._lanes)

    def bind(self) -> None:
        torch.cuda.set_device(self.device)
        torch.cuda.set_stream(self._stream)
        self._stream.wait_stream(torch.cuda.default_stream(self.device))

    def placed(self, query: NDArray[np.generic], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """A long query in pinned memory: a kernel reads it there."""
        long = self._long_queries.placed(query, dtype) if shared_rows(len(query)) is None else None
        return query.astype(dtype) if long is None else long

    def launch(self, requests: Sequence[Request]) -> "_Flight":
        slot = self._free.pop()
        try:
            flight: Launched | None = None
            if len(requests) == 1:
                flight = self._graphs.launch(requests[0], self.rounded, slot)
            return _Flight(flight or self._lanes[slot].launch(requests), slot, self._free)
        except BaseException:
            # What was enqueued may still read the slot's buffers; an error of its own is not the first one.
            with suppress(RuntimeError):
                self._stream.synchronize()
            self._free.append(slot)
            raise

    def explain(self, query: NDArray[np.generic], rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        explained = maxsim.explain(
            torch.from_numpy(query).to(self.device, self.rounded(query, rows.dtype)), rows.to(self.device)
        )
        return explained.tokens.cpu(), explained.similarities.cpu()

    def release(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def rounded(self, query: NDArray[np.generic], stored: torch.dtype) -> torch.dtype:
        """The dtype that a query takes for documents of another."""
        return query_dtype(query, stored, self._keep_float32)


class _Flight:
    """A batch on its way, in a slot that is free again once it has been waited for."""

    __slots__ = ("_free", "_launched", "_slot")

    def __init__(self, launched: Launched, slot: int, free: list[int]) -> None:
        self._launched = launched
        self._slot = slot
        self._free = free

    def glance(self) -> Scored | None:
        return self._launched.glance()

    def wait(self) -> Scored:
        try:
            return self._launched.wait()
        finally:
            self._free.append(self._slot)
