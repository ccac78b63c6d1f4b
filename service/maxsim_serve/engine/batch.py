"""Many requests on a GPU: one upload, a launch for each kind of query and store, one download, one stream.

What a batch reads stays alive until it has been waited for: its buffers, and its parts with the leases they
hold.
"""

import time
from collections.abc import Sequence
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

_MARKS = ("upload", "kernel", "select", "download")


class _Key(NamedTuple):
    """What one launch has in common: the store's tensor (address, dtype, width) and the kind of query."""

    address: int
    dtype: torch.dtype
    dim: int
    query_dtype: torch.dtype
    form: int


class _Work(NamedTuple):
    """One launch: the members' (request, part) and the numbers of its tensors in the upload; `tokens` is
    the store's tensor or a number, `indices` are of starts, lengths, query index."""

    members: list[tuple[int, Part]]
    tokens: torch.Tensor | int
    queries: int
    query_spans: tuple[int, int] | None
    indices: tuple[int, int, int]
    longest: tuple[int, int]


class Lane:
    """One of the batches in flight: its buffers and its events, used again once it has been waited for.

    Nothing waits for the device between `launch` and `wait`.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, rounded: Rounding) -> None:
        self._device = device
        self._stream = stream
        self._rounded = rounded
        self._staging = Staging(device)
        self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(1 + len(_MARKS))]
        self._numbers = torch.arange(1 << 14, device=device)

    @property
    def device_bytes(self) -> int:
        return self._staging.device_bytes

    def launch(self, requests: Sequence[Request]) -> "_Flight":
        started = time.perf_counter()
        marks, stream = self._marks, self._stream
        layout = Layout()
        works = [self._lay_out(layout, key, members, requests) for key, members in self._groups(requests)]
        marks[0].record(stream)
        upload = self._staging.upload(layout) if works else None
        marks[1].record(stream)
        launches = []
        scores = []
        for work in works:
            assert upload is not None
            piece, kernel = self._score(work, upload)
            scores.append(piece)
            launches.append((kernel, _tokens(work, upload).dtype))
        marks[2].record(stream)
        picked = [_pick(work, piece, requests) for work, piece in zip(works, scores, strict=True)]
        marks[3].record(stream)
        arrays = self._staging.download([tensor for tensors in picked for tensor in tensors])
        marks[4].record(stream)
        return _Flight(
            requests, works, arrays, launches, marks, layout.size_bytes, time.perf_counter() - started
        )

    def _groups(self, requests: Sequence[Request]) -> list[tuple[_Key, list[tuple[int, Part]]]]:
        groups: dict[_Key, list[tuple[int, Part]]] = {}
        for number, request in enumerate(requests):
            form = shared_rows(len(request.query)) or -1 - number
            for part in request.resolved.parts:
                tokens = part.tokens
                rounded = self._rounded(request.query, tokens.dtype)
                key = _Key(tokens.data_ptr(), tokens.dtype, tokens.shape[1], rounded, form)
                groups.setdefault(key, []).append((number, part))
        return list(groups.items())

    def _lay_out(
        self, layout: Layout, key: _Key, members: list[tuple[int, Part]], requests: Sequence[Request]
    ) -> _Work:
        parts = [part for _, part in members]
        starts, lengths = joined([part.starts for part in parts]), joined([part.lengths for part in parts])
        tokens: torch.Tensor | int = parts[0].tokens
        if parts[0].tokens.device.type == "cpu":
            rows, starts = _packed(parts[0].tokens, starts, lengths)
            tokens = layout.add(rows, key.dtype)
        queries = [requests[number].query for number, _ in members]
        query_lengths = np.array([len(query) for query in queries])
        query_spans = None
        if len(queries) > 1:
            query_starts = query_lengths.cumsum() - query_lengths
            query_spans = (
                layout.add(torch.from_numpy(query_starts), torch.int64),
                layout.add(torch.from_numpy(query_lengths), torch.int64),
            )
        of_query = np.repeat(np.arange(len(parts)), [len(part.positions) for part in parts])
        return _Work(
            members,
            tokens,
            layout.add(torch.from_numpy(joined(queries)), key.query_dtype),
            query_spans,
            (
                layout.add(torch.from_numpy(starts), torch.int64),
                layout.add(torch.from_numpy(lengths), torch.int64),
                layout.add(torch.from_numpy(of_query), torch.int64),
            ),
            (int(query_lengths.max()), int(lengths.max()) if len(lengths) else 0),
        )

    def _score(self, work: _Work, upload: Upload) -> tuple[torch.Tensor, str]:
        """→ (scores fp32 [P] on the device, the kernel's name). Enqueues."""
        starts, lengths, of_query = (upload[number] for number in work.indices)
        most_query_rows, most_rows = work.longest
        documents = maxsim.Spans.trusted(_tokens(work, upload), starts, lengths, most_rows)
        queries: torch.Tensor | maxsim.Spans = upload[work.queries]
        if work.query_spans is not None:
            first, count = (upload[number] for number in work.query_spans)
            queries = maxsim.Spans.trusted(upload[work.queries], first, count, most_query_rows)
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
        marks: Sequence[torch.cuda.Event],
        upload_bytes: int,
        launch_s: float,
    ) -> None:
        self._requests = requests
        self._works = works
        self._arrays = arrays
        self._launches = launches
        self._marks = marks
        self._upload_bytes = upload_bytes
        self._launch_s = launch_s

    def wait(self) -> Scored:
        self._marks[-1].synchronize()
        results: list[NDArray[np.float32] | Best | None] = [None] * len(self._requests)
        pieces: list[list[tuple[Part, NDArray[np.float32]]]] = [[] for _ in self._requests]
        arrays = iter(self._arrays)
        for work in self._works:
            if _picks(work, self._requests):
                (number, part), values, indices = work.members[0], next(arrays), next(arrays)
                results[number] = Best(part.positions[indices], values.copy())  # type: ignore[arg-type]
                continue
            # A copy: the buffer is another batch's next, and a ranking may outlive that.
            scores = next(arrays).copy()
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
            stages_s(_MARKS, self._marks) | {"launch": self._launch_s},
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
