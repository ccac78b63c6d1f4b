"""Many requests on a GPU: one upload, a launch for each kind of query and store, one download, one stream.

What a batch reads stays alive until it has been waited for: its buffers, and its parts with the leases they
hold.
"""

import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import maxsim
from maxsim.topk import SORTED_WHOLE

from ..store import Part
from .forms import Rounding, shared_rows
from .scorer import Best, Request, Scored
from .staging import Layout, Staging, Upload, stages_s
from .worklist import by_position, joined

__all__ = ["Lane"]

# Upload, kernel, perhaps a selection, download.
_MOST_STAGES = 4
# Pairs of queries with as many candidates each whose numbers are kept: 1 MB.
_MOST_ALIKE = 1 << 17


class _Key(NamedTuple):
    """What one launch has in common: the store's tensor, by its id(), and the kind of query."""

    tokens: int
    query_dtype: torch.dtype
    form: int


class _Work(NamedTuple):
    """One launch: the members' (request, part) and the numbers of its tensors in the upload; `tokens` is
    the store's tensor or a number, `numbers` are of the documents' starts and lengths, the query of each
    pair, the queries' starts and lengths. No query and no document has more rows than the longest."""

    members: list[tuple[int, Part]]
    tokens: torch.Tensor | int
    queries: int
    numbers: range
    longest_query: int
    longest: int


class Lane:
    """One of the batches in flight: its buffers and its events, used again once it has been waited for.

    Nothing waits for the device between `launch` and `wait`.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, rounded: Rounding) -> None:
        self._device = device
        self._stream = stream
        self._rounded = rounded
        self._staging = Staging(device)
        self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(1 + _MOST_STAGES)]
        self._numbers = torch.arange(1 << 14, device=device)

    @property
    def device_bytes(self) -> int:
        return self._staging.device_bytes

    def launch(self, requests: Sequence[Request]) -> "_Flight":
        started = time.perf_counter()
        layout = Layout()
        works = [self._lay_out(layout, key, members, requests) for key, members in self._groups(requests)]
        self._staging.fill(layout)
        stages: list[str] = []
        self._marks[0].record(self._stream)
        upload = self._staging.upload(layout)
        self._end("upload", stages)
        found, launches = [], []
        for work in works:
            scores, kernel = self._score(work, upload)
            found.append(scores)
            launches.append((kernel, _tokens(work, upload).dtype))
        self._end("kernel", stages)
        if any(_picks(work, requests) for work in works):
            picked = [_pick(work, scores, requests) for work, scores in zip(works, found, strict=True)]
            found = [tensor for tensors in picked for tensor in tensors]
            self._end("select", stages)
        arrays = self._staging.download(found)
        self._end("download", stages)
        return _Flight(
            requests,
            works,
            arrays,
            launches,
            stages,
            self._marks,
            layout.size_bytes,
            time.perf_counter() - started,
        )

    def _end(self, stage: str, stages: list[str]) -> None:
        """What was enqueued since the last mark is a stage."""
        stages.append(stage)
        self._marks[len(stages)].record(self._stream)

    def _groups(self, requests: Sequence[Request]) -> list[tuple[_Key, list[tuple[int, Part]]]]:
        # By the values of a key: to make a named tuple for each request takes longer than all the rest.
        groups: dict[tuple[int, torch.dtype, int], list[tuple[int, Part]]] = {}
        for number, request in enumerate(requests):
            form = shared_rows(len(request.query)) or -1 - number
            for part in request.resolved.parts:
                tokens = part.tokens
                key = id(tokens), self._rounded(request.query, tokens.dtype), form
                groups.setdefault(key, []).append((number, part))
        return [(_Key(*key), members) for key, members in groups.items()]

    def _lay_out(
        self, layout: Layout, key: _Key, members: list[tuple[int, Part]], requests: Sequence[Request]
    ) -> _Work:
        parts = [part for _, part in members]
        starts, lengths = [part.starts for part in parts], [part.lengths for part in parts]
        tokens: torch.Tensor | int = parts[0].tokens
        if parts[0].tokens.is_cpu:
            rows, packed_starts = _packed(parts[0].tokens, joined(starts), joined(lengths))
            tokens, starts = layout.tensor(rows, rows.dtype), [packed_starts]
        queries = [requests[number].query for number, _ in members]
        query_lengths = [len(query) for query in queries]
        # A few numbers are sooner worked out without NumPy.
        query_starts = [0, *accumulate(query_lengths[:-1])]
        of_query = _of_query([len(part.positions) for part in parts])
        return _Work(
            members,
            tokens,
            layout.rows(queries, key.query_dtype),
            layout.numbers(starts, lengths, [of_query], [np.array(query_starts)], [np.array(query_lengths)]),
            max(query_lengths),
            max(part.most_rows() for part in parts),
        )

    def _score(self, work: _Work, upload: Upload) -> tuple[torch.Tensor, str]:
        """→ (scores fp32 [P] on the device, the kernel's name). Enqueues."""
        starts, lengths, of_query, first_rows, row_counts = (upload[number] for number in work.numbers)
        documents = maxsim.Spans.trusted(_tokens(work, upload), starts, lengths, work.longest)
        rows = upload[work.queries]
        one = len(work.members) == 1
        queries = rows if one else maxsim.Spans.trusted(rows, first_rows, row_counts, work.longest_query)
        pairs = len(of_query)
        if pairs > len(self._numbers):
            self._numbers = torch.arange(1 << (pairs - 1).bit_length(), device=self._device)
        kernel = maxsim.plan(queries, documents, pairs=pairs).kernel
        return maxsim.score_pairs(queries, documents, of_query, self._numbers[:pairs]), kernel


class _Flight:
    """A batch that the device works on; holds what it reads."""

    def __init__(
        self,
        requests: Sequence[Request],
        works: Sequence[_Work],
        arrays: Sequence[NDArray[np.generic]],
        launches: Sequence[tuple[str, torch.dtype]],
        stages: Sequence[str],
        marks: Sequence[torch.cuda.Event],
        upload_bytes: int,
        launch_s: float,
    ) -> None:
        self._requests = requests
        self._works = works
        self._arrays = arrays
        self._launches = launches
        self._stages = stages
        self._marks = marks
        self._upload_bytes = upload_bytes
        self._launch_s = launch_s

    def glance(self) -> None:
        """Of a batch that is not to be had for next to nothing."""

    def wait(self) -> Scored:
        self._marks[len(self._stages)].synchronize()
        results: list[NDArray[np.float32] | Best | None] = [None] * len(self._requests)
        pieces: list[list[tuple[Part, NDArray[np.float32]]]] = [[] for _ in self._requests]
        arrays = iter(self._arrays)
        for work in self._works:
            if _picks(work, self._requests):
                (number, part), values, indices = work.members[0], next(arrays), next(arrays)
                results[number] = Best(part.positions[indices], values.copy())  # type: ignore[arg-type]
                continue
            scores = next(arrays)
            first = 0
            for number, part in work.members:
                end = first + len(part.positions)
                pieces[number].append((part, scores[first:end]))  # type: ignore[arg-type]
                first = end
        return Scored(
            [
                by_position(request.resolved.count, of) if result is None else result
                for request, of, result in zip(self._requests, pieces, results, strict=True)
            ],
            self._launches,
            stages_s(self._stages, self._marks) | {"launch": self._launch_s},
            {"up": self._upload_bytes, "down": sum(array.nbytes for array in self._arrays)},
        )


def _picks(work: _Work, requests: Sequence[Request]) -> bool:
    """Whether the device picks the best: one request's many candidates, in one part, of which few are wanted.

    Up to some thousands, a download and a sort on the host are sooner done than another launch.
    """
    request = requests[work.members[0][0]]
    pairs = len(work.members[0][1].positions)
    alone = len(work.members) == 1 and len(request.resolved.parts) == 1
    return alone and pairs > SORTED_WHOLE and request.wanted <= pairs // 2


def _pick(work: _Work, scores: torch.Tensor, requests: Sequence[Request]) -> tuple[torch.Tensor, ...]:
    """What is downloaded of a launch: all scores, or the values and indices of the best."""
    if not _picks(work, requests):
        return (scores,)
    best = maxsim.top_k(scores, requests[work.members[0][0]].wanted)
    return best.values, best.indices


def _tokens(work: _Work, upload: Upload) -> torch.Tensor:
    return upload[work.tokens] if isinstance(work.tokens, int) else work.tokens


def _of_query(counts: Sequence[int]) -> NDArray[np.int64]:
    """The query of each pair, the n-th for counts[n] of them. Most clients always ask for as many."""
    queries, count = len(counts), counts[0]
    if counts.count(count) == queries and queries * count <= _MOST_ALIKE:
        return _of_query_alike(1 << (queries - 1).bit_length(), count)[: queries * count]
    return np.arange(queries).repeat(counts)


@lru_cache(16)
def _of_query_alike(queries: int, count: int) -> NDArray[np.int64]:
    return np.arange(queries).repeat(count)


def _packed(
    tokens: torch.Tensor, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """Rows that the device cannot read → (those asked for, packed; where each document begins)."""
    ends = lengths.cumsum()
    packed_starts = ends - lengths
    if np.array_equal(starts, packed_starts):
        return tokens[: int(ends[-1])], packed_starts
    spans = zip(starts.tolist(), lengths.tolist(), strict=True)
    return torch.cat([tokens[start : start + length] for start, length in spans]), packed_starts
