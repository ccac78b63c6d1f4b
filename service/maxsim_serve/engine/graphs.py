"""One request as one CUDA graph: upload, kernel, download, between buffers that never move.

A graph is launched with one call where plain launches take some thirty, and of those most find their code and
data in cold caches. Its sizes are fixed when it is captured, so candidates are filled up to the next of a few
numbers by documents without a row, which score −∞ and are not looked at.
"""

import time
from collections import OrderedDict
from typing import NamedTuple

import torch

import maxsim

from .forms import Rounding, shared_rows
from .scorer import Request, Scored
from .staging import stages_s
from .worklist import by_position

__all__ = ["Graphs"]

# Candidates that a graph takes; for more, the launches are a small part of the time.
_PAIRS = (128, 256, 512, 1024, 2048, 4096)
# No document is longer than one less than a power of two from here on.
_LONGEST_BITS = 8
_KEPT = 64
_UNUSED_FOR = 1000
_SEEN = 10_000
# int64 numbers between the query's rows and the documents' spans.
_HEAD, _QUERY_LENGTH = 4, 2
_MARKS = ("upload", "kernel", "download")


class _Key(NamedTuple):
    """What a graph is captured for. `rows` of the query, `pairs` and `longest` are upper bounds."""

    address: int
    dtype: torch.dtype
    dim: int
    query_dtype: torch.dtype
    rows: int
    pairs: int
    longest: int


class Graphs:
    """Captures a graph when its kind of request comes for the second time, in some milliseconds.

    There are 64 at the most. A new kind takes the place of one that has not come for a thousand requests, and
    is launched plainly where all of them have: kinds that take turns must not be captured again and again.
    `slots` requests may be in flight, each in its own slot: a slot is used again when it has been waited for.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, slots: int) -> None:
        self._device = device
        self._stream = stream
        self._slots = slots
        self._pool: torch.cuda._POOL_HANDLE | None = None
        self._graphs: OrderedDict[_Key, _Kept] = OrderedDict()  # the one longest unused first
        self._seen: set[_Key] = set()
        self._requests = 0

    @property
    def device_bytes(self) -> int:
        """Device memory that the graphs upload to."""
        return sum(graph.device_bytes for kept in self._graphs.values() for graph in kept.graphs)

    def launch(self, request: Request, rounded: Rounding, slot: int) -> "_Flight | None":
        """Enqueue the request, or None where there is no graph for its kind yet, or none can be."""
        started = time.perf_counter()
        key = _key(request, rounded)
        if key is None:
            return None
        self._requests += 1
        kept = self._graphs.get(key) or self._captured(key, request)
        if kept is None:
            return None
        kept.used = self._requests
        self._graphs.move_to_end(key)
        return kept.graphs[slot].launch(request, started)

    def _captured(self, key: _Key, request: Request) -> "_Kept | None":
        if key not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen.add(key)
            return None
        if len(self._graphs) == _KEPT:
            oldest = next(iter(self._graphs))
            if self._requests - self._graphs[oldest].used < _UNUSED_FOR:
                return None
            del self._graphs[oldest]
        try:
            kept = _Kept([self._capture(key, request) for _ in range(self._slots)])
        except torch.OutOfMemoryError:
            return None  # there may be room when this kind comes again
        self._graphs[key] = kept
        return kept

    def _capture(self, key: _Key, request: Request) -> "_Graph":
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return _Graph(key, request.resolved.parts[0].tokens, self._device, self._stream, self._pool)


class _Kept:
    """One kind's graphs, one a slot, and the number of the request that they were last `used` for."""

    def __init__(self, graphs: list["_Graph"]) -> None:
        self.graphs = graphs
        self.used = 0


def _key(request: Request, rounded: Rounding) -> _Key | None:
    parts = request.resolved.parts
    if len(parts) != 1:
        return None
    part = parts[0]
    count, tokens = len(part.positions), part.tokens
    pairs = next((most for most in _PAIRS if count <= most), None)
    if pairs is None or not tokens.is_cuda:
        return None
    longest = int(part.lengths.max()) if part.longest is None else part.longest
    longest = (1 << max(_LONGEST_BITS, longest.bit_length())) - 1
    rows = shared_rows(len(request.query)) or len(request.query)
    query_dtype = rounded(request.query, tokens.dtype)
    return _Key(tokens.data_ptr(), tokens.dtype, tokens.shape[1], query_dtype, rows, pairs, longest)


class _Graph:
    """A captured graph and its buffers.

    An upload is the query's rows, the query's first row and length, the documents' first rows, their lengths;
    each at a multiple of 16 bytes, for which kernels are compiled.
    """

    def __init__(
        self,
        key: _Key,
        tokens: torch.Tensor,
        device: torch.device,
        stream: torch.cuda.Stream,
        pool: torch.cuda._POOL_HANDLE,
    ) -> None:
        query_bytes = key.rows * key.dim * key.query_dtype.itemsize
        size_bytes = query_bytes + 8 * (_HEAD + 2 * key.pairs)
        up = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)
        on_device = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        down = torch.empty(key.pairs, dtype=torch.float32, pin_memory=True)
        self.device_bytes = size_bytes
        self._query = up[:query_bytes].view(key.query_dtype).view(key.rows, key.dim)
        # NumPy has no bfloat16: its numbers match no query's dtype.
        numbers = torch.int16 if key.query_dtype == torch.bfloat16 else key.query_dtype
        self._numpy_query = self._query.view(numbers).numpy()
        spans = up[query_bytes:].view(torch.int64).numpy()
        self._query_length = spans[_QUERY_LENGTH:_HEAD]
        self._starts, self._lengths = spans[_HEAD:].reshape(2, -1)
        self._scores = down.numpy()
        self._filled = 0
        self._marks = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(4)]
        self._graph = torch.cuda.CUDAGraph()

        rows = on_device[:query_bytes].view(key.query_dtype).view(key.rows, key.dim)
        head = on_device[query_bytes:].view(torch.int64)
        starts, lengths = head[_HEAD:].view(2, -1)
        queries: torch.Tensor | maxsim.Spans = rows
        # A long query is copied before the graph, from wherever it is.
        self._own_query: torch.Tensor | None = rows
        uploaded = query_bytes
        if shared_rows(key.rows) is not None:
            self._own_query, uploaded = None, 0
            queries = maxsim.Spans.trusted(rows, head[:1], head[_QUERY_LENGTH:][:1], key.rows)
        documents = maxsim.Spans.trusted(tokens, starts, lengths, key.longest)
        self.kernel = maxsim.plan(queries, documents).kernel
        maxsim.score(queries, documents)  # what is made at a first launch is not made in a capture
        stream.synchronize()
        # Other threads of the service talk to the device meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._marks[0].record(stream)
            on_device[uploaded:].copy_(up[uploaded:], non_blocking=True)
            self._marks[1].record(stream)
            scores = maxsim.score(queries, documents)
            self._marks[2].record(stream)
            down.copy_(scores[0], non_blocking=True)
            self._marks[3].record(stream)
        # The graph knows addresses alone.
        self._held = (up, on_device, down, tokens, scores)

    def launch(self, request: Request, started: float) -> "_Flight":
        (part,) = request.resolved.parts
        count = len(part.positions)
        query = request.query
        fits = query.dtype == self._numpy_query.dtype
        if self._own_query is not None and fits and (pinned := torch.from_numpy(query)).is_pinned():
            self._own_query.copy_(pinned, non_blocking=True)
        else:
            if fits:
                self._numpy_query[: len(query)] = query
            else:
                self._query[: len(query)].copy_(torch.from_numpy(query))
            if self._own_query is not None:
                self._own_query.copy_(self._query, non_blocking=True)
        self._query_length[0] = len(query)
        self._starts[:count] = part.starts
        self._lengths[:count] = part.lengths
        self._lengths[count : self._filled] = 0
        self._filled = count
        self._graph.replay()
        return _Flight(self, request, time.perf_counter() - started)

    def wait(self, request: Request, launch_s: float) -> Scored:
        marks = self._marks
        marks[-1].synchronize()
        (part,) = request.resolved.parts
        # A copy: the buffer is the next request's, and a ranking may outlive that.
        scores = self._scores[: len(part.positions)].copy()
        return Scored(
            [by_position(request.resolved.count, [(part, scores)])],
            [(self.kernel, part.tokens.dtype)],
            stages_s(_MARKS, marks) | {"launch": launch_s},
            {"up": self.device_bytes, "down": self._scores.nbytes},
            graphs=1,
        )


class _Flight:
    """A request that the device works on; holds what it reads."""

    def __init__(self, graph: _Graph, request: Request, launch_s: float) -> None:
        self._graph = graph
        self._request = request
        self._launch_s = launch_s

    def wait(self) -> Scored:
        return self._graph.wait(self._request, self._launch_s)
