"""Which kinds of requests have a CUDA graph: those that are asked for most.

A graph is launched with one call where plain launches take some thirty, and of those most find their code and
data in cold caches. Its sizes are fixed when it is captured, so candidates are filled up to the next of a few
numbers by documents without a row, which score −∞ and are not looked at.
"""

import time
from bisect import bisect_left

import torch

from .forms import Rounding, shared_rows
from .graph import Flight, Graph, Kind
from .long_queries import STEP, LongQueries
from .popularity import Popularity
from .scorer import Request

__all__ = ["Graphs"]

# Candidates that a graph takes; for more, the launches are a small part of the time.
_PAIRS = (128, 256, 512, 1024, 2048, 4096)
# No document is longer than one less than a power of two from here on.
_LONGEST_BITS = 8
_KEPT = 64
# A kind takes another's place once it is asked for more than so many times as often, and some times more:
# kinds that take turns must not be captured again and again.
_TIMES_MORE, _MORE = 2, 16
_PERIOD = 2000


class Graphs:
    """Captures a graph when its kind of request comes for the second time, in some milliseconds.

    There are 64 kinds at the most. A new one takes the place of the one least asked for lately, if that is
    asked for clearly less, and is launched plainly until then. `slots` requests may be in flight, each in its
    own slot: a slot is used again when it has been waited for.
    """

    def __init__(
        self, device: torch.device, stream: torch.cuda.Stream, slots: int, long_queries: LongQueries
    ) -> None:
        self._device = device
        self._stream = stream
        self._slots = slots
        self._long_queries = long_queries
        self._pool: torch.cuda._POOL_HANDLE | None = None
        self._graphs: dict[Kind, list[Graph]] = {}
        self._popularity: Popularity[Kind] = Popularity(_PERIOD)

    @property
    def device_bytes(self) -> int:
        """Device memory that the graphs upload to."""
        return sum(graph.device_bytes for graphs in self._graphs.values() for graph in graphs)

    def launch(self, request: Request, rounded: Rounding, slot: int) -> Flight | None:
        """Enqueue the request, or None where there is no graph for its kind yet, or none can be."""
        started = time.perf_counter()
        kind = _kind(request, rounded)
        if kind is None:
            return None
        graphs = self._graphs.get(kind) or self._captured(kind, request)
        flight = graphs[slot].launch(request, started) if graphs else None
        # While the device works.
        self._popularity.ask(kind)
        return flight

    def _captured(self, kind: Kind, request: Request) -> list[Graph] | None:
        """New graphs, None for a kind that is not to have any now."""
        if not LongQueries.takes(kind.query_bytes):
            return None
        asked = self._popularity.of(kind)
        if len(self._graphs) < _KEPT:
            if not asked:
                return None
        else:
            least = min(self._graphs, key=self._popularity.of)
            if asked <= _TIMES_MORE * self._popularity.of(least) + _MORE:
                return None
            del self._graphs[least]
        try:
            graphs = [self._capture(kind, slot, request) for slot in range(self._slots)]
        except torch.OutOfMemoryError:
            return None  # there may be room when this kind comes again
        self._graphs[kind] = graphs
        return graphs

    def _capture(self, kind: Kind, slot: int, request: Request) -> Graph:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        tokens = request.resolved.parts[0].tokens
        return Graph(kind, slot, tokens, self._long_queries, self._device, self._stream, self._pool)


def _kind(request: Request, rounded: Rounding) -> Kind | None:
    parts = request.resolved.parts
    if len(parts) != 1:
        return None
    part = parts[0]
    count, tokens = len(part.positions), part.tokens
    if count > _PAIRS[-1] or not tokens.is_cuda:
        return None
    pairs = _PAIRS[bisect_left(_PAIRS, count)]
    longest = int(part.lengths.max()) if part.longest is None else part.longest
    longest = (1 << max(_LONGEST_BITS, longest.bit_length())) - 1
    rows = shared_rows(len(request.query)) or -(-len(request.query) // STEP) * STEP
    return Kind(
        tokens.data_ptr(),
        tokens.dtype,
        tokens.shape[1],
        rounded(request.query, tokens.dtype),
        rows,
        pairs,
        longest,
    )
