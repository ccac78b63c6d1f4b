"""Which kinds of requests have a CUDA graph: those that are asked for most.

A graph is launched with one call where plain launches take some thirty, and of those most find their code and
data in cold caches. Its sizes are fixed when it is captured, so candidates are filled up to the next of a few
numbers by documents without a row, which score −∞ and are not looked at.
"""

import time
from bisect import bisect_left
from contextlib import suppress

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

# A Kind's values. To make a named tuple takes a request longer than to find its graph.
_Key = tuple[int, torch.dtype, int, int, int]


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
        self._graphs: dict[_Key, list[Graph]] = {}
        self._stored: dict[int, torch.dtype] = {}  # of the tensors that graphs hold, by their ids
        self._popularity: Popularity[_Key] = Popularity(_PERIOD)

    @property
    def device_bytes(self) -> int:
        """Device memory that the graphs upload to."""
        return sum(graph.device_bytes for graphs in self._graphs.values() for graph in graphs)

    def launch(self, request: Request, rounded: Rounding, slot: int) -> Flight | None:
        """Enqueue the request, or None where there is no graph for its kind yet, or none can be."""
        started = time.perf_counter()
        parts, query = request.resolved.parts, request.query
        if len(parts) != 1:
            return None
        part = parts[0]
        tokens, count = part.tokens, len(part.positions)
        if count > _PAIRS[-1]:
            return None
        stored = self._stored.get(id(tokens))
        if stored is None:
            if not tokens.is_cuda:
                return None
            stored = tokens.dtype
        key = (
            id(tokens),
            rounded(query, stored),
            shared_rows(len(query)) or -(-len(query) // STEP) * STEP,
            _PAIRS[bisect_left(_PAIRS, count)],
            (1 << max(_LONGEST_BITS, part.most_rows().bit_length())) - 1,
        )
        graphs = self._graphs.get(key) or self._captured(key, tokens)
        flight = graphs[slot].launch(request, started) if graphs else None
        # While the device works.
        self._popularity.ask(key)
        return flight

    def _captured(self, key: _Key, tokens: torch.Tensor) -> list[Graph] | None:
        """New graphs, None for a kind that is not to have any now."""
        kind = Kind(*key)
        if not LongQueries.takes(kind.rows * tokens.shape[1] * kind.query_dtype.itemsize):
            return None
        asked = self._popularity.of(key)
        if len(self._graphs) < _KEPT:
            if not asked:
                return None
        else:
            least = min(self._graphs, key=self._popularity.of)
            if asked <= _TIMES_MORE * self._popularity.of(least) + _MORE:
                return None
            del self._graphs[least]
        with suppress(torch.OutOfMemoryError):  # there may be room when this kind comes again
            self._graphs[key] = [self._capture(kind, slot, tokens) for slot in range(self._slots)]
        held = (graphs[0].tokens for graphs in self._graphs.values())
        self._stored = {id(tokens): tokens.dtype for tokens in held}
        return self._graphs.get(key)

    def _capture(self, kind: Kind, slot: int, tokens: torch.Tensor) -> Graph:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return Graph(kind, slot, tokens, self._long_queries, self._device, self._stream, self._pool)
