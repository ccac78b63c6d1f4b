"""One kind of request as one CUDA graph: upload, kernel, download, between buffers that never move."""

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
from .staging import fill
from .worklist import by_position

__all__ = ["Graph", "Kind"]

# int64 numbers before the documents' spans: the query's first row in its table, or the place of a long one,
# and its number of rows; each at a multiple of 16 bytes, for which kernels are compiled.
_HEAD, _QUERY_LENGTH = 4, 2
# Similarities from which on the device works longer than what comes after takes the host: some 0.1 ms.
_LONG = 1 << 28


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
        from . import carry  # which imports Triton

        self.is_long = kind.rows * kind.pairs * kind.longest >= _LONG
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
        self._up = up.numpy()
        self._query = up[:query_bytes].view(kind.query_dtype).view(-1, dim)
        # Queries are float16 or float32; NumPy has no bfloat16.
        self._copied_bytes = 0 if kind.query_dtype == torch.bfloat16 else kind.query_dtype.itemsize
        self._head = up[query_bytes:][: 8 * _HEAD].view(torch.int64).numpy()
        starts_at = query_bytes + 8 * _HEAD
        lengths_at = starts_at + 8 * kind.pairs
        self._places = [starts_at, lengths_at, 0]
        self._lengths = up[lengths_at:].view(torch.int64).numpy()
        self._scores = down.numpy()
        self._filled = 0
        self._end = torch.cuda.Event(external=True)
        self._graph = torch.cuda.CUDAGraph()

        words = on_device.view(torch.int64)
        head = on_device[query_bytes:].view(torch.int64)
        starts, lengths = head[_HEAD:].view(2, -1)
        documents = maxsim.Spans.trusted(tokens, starts, lengths, kind.longest)
        queries: torch.Tensor | maxsim.Spans
        long_query = None
        if self._long_queries is None:
            rows = on_device[:query_bytes].view(kind.query_dtype).view(kind.rows, dim)
            queries = maxsim.Spans.trusted(rows, head[:1], head[_QUERY_LENGTH:][:1], kind.rows)
        else:
            queries = torch.zeros(kind.rows, dim, dtype=kind.query_dtype, device=device)
            self.device_bytes += rows_bytes
            long_query = carry.LongQuery(self._long_queries.on_device, 0, queries.view(-1).view(torch.int64))
        self.kernel = maxsim.plan(queries, documents).kernel
        self._clocks = carry.Clocks(len(words), 0 if long_query is None else len(long_query.rows), kind.pairs)
        readings = torch.zeros(self._clocks.readings, dtype=torch.int64, pin_memory=True)
        self._readings = readings.numpy()
        up_view, down_view, readings_view = (
            device_view(host.view(torch.uint8), device).view(dtype)
            for host, dtype in ((up, torch.int64), (down, torch.float32), (readings, torch.int64))
        )
        # What is made at a first launch is not made in a capture.
        carry.fetch(up_view, words, readings_view, long_query)
        carry.deliver(maxsim.score(queries, documents)[0], down_view, readings_view)
        stream.synchronize()
        # Other threads of the service talk to the device meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            carry.fetch(up_view, words, readings_view, long_query)
            scores = maxsim.score(queries, documents)
            carry.deliver(scores[0], down_view, readings_view)
            self._end.record(stream)
        self.tokens = tokens
        # The graph knows addresses alone.
        self._held = (
            up,
            words,
            queries,
            long_query,
            down,
            readings,
            scores,
            up_view,
            down_view,
            readings_view,
        )

    def launch(self, request: Request, started: float) -> "Flight":
        (part,) = request.resolved.parts
        count, query = len(part.positions), request.query
        arrays: list[NDArray[np.generic]] = [part.starts, part.lengths]
        if self._long_queries is not None:
            self._head[0] = self._long_queries.place(query, self._query_dtype, self._slot)
        else:
            self._head[_QUERY_LENGTH] = len(query)
            if query.itemsize == self._copied_bytes:
                arrays.append(query)
            else:
                self._query[: len(query)].copy_(torch.from_numpy(query))
        fill(self._up, self._places, arrays)
        if count < self._filled:
            self._lengths[count : self._filled] = 0
        self._filled = count
        self._graph.replay()
        return Flight(self, request, time.perf_counter() - started)

    def wait(self) -> None:
        self._end.synchronize()

    def scored(self, request: Request, launch_s: float) -> Scored:
        """What the device has delivered by now."""
        (part,) = request.resolved.parts
        scores = self._scores[: len(part.positions)]
        return Scored(
            [by_position(request.resolved.count, [(part, scores)])],
            [(self.kernel, part.tokens.dtype)],
            {"launch": launch_s} | self._clocks.stages_s(self._readings.tolist()),
            {"up": self.device_bytes, "down": self._scores.nbytes},
            graphs=1,
        )


class Flight:
    """A request that the device works on; holds what it reads."""

    __slots__ = ("_graph", "_launch_s", "_request")

    def __init__(self, graph: Graph, request: Request, launch_s: float) -> None:
        self._graph = graph
        self._request = request
        self._launch_s = launch_s

    def glance(self) -> Scored | None:
        return self._graph.scored(self._request, self._launch_s) if self._graph.is_long else None

    def wait(self) -> Scored:
        self._graph.wait()
        return self._graph.scored(self._request, self._launch_s)
