"""One kind of request as one CUDA graph: upload, kernel, download, between buffers that never move.

Kernels copy, not the copy engine: they read and write pinned memory in place, and have some kilobytes over
the bus before that has begun.
"""

import time
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import maxsim

from ..store import device_view
from .forms import shared_rows
from .long_queries import LongQueries
from .scorer import Request, Scored
from .worklist import by_position

__all__ = ["Graph", "Kind"]

# int64 numbers before the documents' spans: the query's first row in its table, or the place of a long one,
# and its number of rows; each at a multiple of 16 bytes, for which kernels are compiled.
_HEAD, _QUERY_LENGTH = 4, 2


class Kind(NamedTuple):
    """What a graph is captured for: a store's tensor, by its id, and what the query is rounded to. `rows` of
    the query, `pairs` and `longest` are upper bounds."""

    tokens_id: int
    query_dtype: torch.dtype
    rows: int
    pairs: int
    longest: int


class Graph:
    """A captured graph and its buffers, for one request at a time: the `slot`-th of those in flight.

    An upload is the query's rows, where they are few, the head, the documents' first rows, their lengths.
    """

    def __init__(
        self,
        kind: Kind,
        slot: int,
        tokens: torch.Tensor,
        long_queries: LongQueries,
        device: torch.device,
        stream: torch.cuda.Stream,
        pool: torch.cuda._POOL_HANDLE,
    ) -> None:
        self._slot = slot
        self._query_dtype = kind.query_dtype
        self._long_queries = long_queries if shared_rows(kind.rows) is None else None
        dim = tokens.shape[1]
        rows_bytes = kind.rows * dim * kind.query_dtype.itemsize
        query_bytes = rows_bytes if self._long_queries is None else 0
        size_bytes = query_bytes + 8 * (_HEAD + 2 * kind.pairs)
        up = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)
        on_device = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        down = torch.empty(kind.pairs, dtype=torch.float32, pin_memory=True)
        self.device_bytes = size_bytes
        self._query = up[:query_bytes].view(kind.query_dtype).view(-1, dim)
        # Queries are float16 or float32; NumPy has no bfloat16.
        self._numpy_query = None if kind.query_dtype == torch.bfloat16 else self._query.numpy()
        self._head = up[query_bytes:][: 8 * _HEAD].view(torch.int64).numpy()
        self._starts, self._lengths = up[query_bytes + 8 * _HEAD :].view(torch.int64).view(2, -1).numpy()
        self._scores = down.numpy()
        self._filled = 0
        self._marks = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(4)]
        self._graph = torch.cuda.CUDAGraph()

        head = on_device[query_bytes:].view(torch.int64)
        starts, lengths = head[_HEAD:].view(2, -1)
        documents = maxsim.Spans.trusted(tokens, starts, lengths, kind.longest)
        queries: torch.Tensor | maxsim.Spans
        places = rows = None
        if self._long_queries is None:
            rows = on_device[:query_bytes].view(kind.query_dtype).view(kind.rows, dim)
            queries = maxsim.Spans.trusted(rows, head[:1], head[_QUERY_LENGTH:][:1], kind.rows)
        else:
            rows = queries = torch.zeros(kind.rows, dim, dtype=kind.query_dtype, device=device)
            self.device_bytes += rows_bytes
            places = self._long_queries.on_device[:, : rows_bytes // 8]
        self.kernel = maxsim.plan(queries, documents).kernel
        maxsim.score(queries, documents)  # what is made at a first launch is not made in a capture
        up_view, down_view = (
            device_view(up, device).view(torch.int64),
            device_view(down.view(torch.uint8), device),
        )
        stream.synchronize()
        # Other threads of the service talk to the device meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._marks[0].record(stream)
            _copy(up_view, on_device.view(torch.int64))
            if places is not None:
                torch.index_select(places, 0, head[:1], out=rows.view(torch.int64).view(1, -1))
            self._marks[1].record(stream)
            scores = maxsim.score(queries, documents)
            self._marks[2].record(stream)
            _copy(scores[0].view(torch.int32), down_view.view(torch.int32))
            self._marks[3].record(stream)
        self.tokens = tokens
        # The graph knows addresses alone.
        self._held = (up, on_device, rows, down, scores, up_view, down_view, places)

    def launch(self, request: Request, started: float) -> "Flight":
        (part,) = request.resolved.parts
        count = len(part.positions)
        query = request.query
        if self._long_queries is not None:
            self._head[0] = self._long_queries.place(query, self._query_dtype, self._slot)
        else:
            if self._numpy_query is not None and query.itemsize == self._numpy_query.itemsize:
                self._numpy_query[: len(query)] = query
            else:
                self._query[: len(query)].copy_(torch.from_numpy(query))
            self._head[_QUERY_LENGTH] = len(query)
        self._starts[:count] = part.starts
        self._lengths[:count] = part.lengths
        if count < self._filled:
            self._lengths[count : self._filled] = 0
        self._filled = count
        self._graph.replay()
        return Flight(self, request, time.perf_counter() - started)

    def wait(self, request: Request, launch_s: float) -> Scored:
        begin, uploaded, computed, end = self._marks
        (part,) = request.resolved.parts
        results: list[NDArray[np.float32]] = []
        stages_s = {"launch": launch_s}
        moved_bytes = {"up": self.device_bytes, "down": self._scores.nbytes}
        scored = Scored(results, [(self.kernel, part.tokens.dtype)], stages_s, moved_bytes, graphs=1)
        uploaded.synchronize()
        stages_s["upload"] = 1e-3 * begin.elapsed_time(uploaded)
        # All before was done while the device worked, the first reading of a clock with it, the slow one.
        end.synchronize()
        stages_s["kernel"] = 1e-3 * uploaded.elapsed_time(computed)
        stages_s["download"] = 1e-3 * computed.elapsed_time(end)
        # A copy: the buffer is the next request's, and a ranking may outlive that.
        scores = self._scores[: len(part.positions)].copy()
        results.append(by_position(request.resolved.count, [(part, scores)]))
        return scored


class Flight:
    """A request that the device works on; holds what it reads."""

    def __init__(self, graph: Graph, request: Request, launch_s: float) -> None:
        self._graph = graph
        self._request = request
        self._launch_s = launch_s

    def wait(self) -> Scored:
        return self._graph.wait(self._request, self._launch_s)


def _copy(source: torch.Tensor, out: torch.Tensor) -> None:
    """By a kernel: `copy_` between what pass for two tensors of one device would take the copy engine."""
    torch.bitwise_or(source, 0, out=out)
