"""What a query is ranked against: stored ids, vectors that came with the request, or a whole collection.

`resolve` turns each into the same thing, spans of packed token rows. It runs on the engine's thread,
as late as possible, so that a request sees the store as it is when it is scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..store import Collection, Located, Part

__all__ = [
    "Candidates",
    "InlineCandidates",
    "Resolved",
    "StoredCandidates",
    "WholeCollection",
    "resolve",
    "resolve_all",
]


@dataclass(slots=True)  # not frozen: that takes a request longer to make
class Resolved:
    """Spans to score, `tokens` document rows in all. `count` positions exist; those in no part are missing.

    `ids` names the documents by position where the caller did not (a whole collection). Nobody changes it.
    """

    parts: Sequence[Part]
    count: int
    missing: NDArray[np.int64]
    tokens: int
    ids: Sequence[str] | None = None


class Candidates(Protocol):
    @property
    def dim(self) -> int:
        """Width that the query must have."""

    @property
    def normalize(self) -> bool:
        """Whether the query's rows are to be L2-normalized as the documents' were."""

    def resolve(self) -> Resolved: ...


@dataclass(frozen=True, slots=True)
class _OfCollection:
    collection: Collection

    @property
    def dim(self) -> int:
        return self.collection.spec.dim

    @property
    def normalize(self) -> bool:
        return self.collection.spec.normalize


@dataclass(frozen=True, slots=True)
class StoredCandidates(_OfCollection):
    """Documents of a collection, by id; duplicates keep their own positions."""

    ids: Sequence[str]

    def resolve(self) -> Resolved:
        return self.resolved(self.collection.locate(self.ids))

    def resolved(self, located: Located) -> Resolved:
        return Resolved(located.parts, len(self.ids), located.missing, located.tokens)


@dataclass(frozen=True, slots=True)
class WholeCollection(_OfCollection):
    """Every document that is stored when the request is scored, in the order of their insertion."""

    def resolve(self) -> Resolved:
        snapshot = self.collection.snapshot()
        count = sum(len(part.positions) for part in snapshot.parts)
        return Resolved(snapshot.parts, count, np.empty(0, dtype=np.int64), snapshot.tokens, snapshot.ids)


@dataclass(frozen=True, slots=True)
class InlineCandidates:
    """Documents whose token matrices `[n, dim]` came with the request; at least one, none empty."""

    vectors: Sequence[NDArray[np.generic]]

    @property
    def dim(self) -> int:
        return int(self.vectors[0].shape[1])

    @property
    def normalize(self) -> bool:
        return False

    def resolve(self) -> Resolved:
        lengths = np.array([len(v) for v in self.vectors], dtype=np.int64)
        tokens = torch.from_numpy(np.concatenate([np.asarray(v, dtype=np.float32) for v in self.vectors]))
        count = len(self.vectors)
        part = Part(tokens, lengths.cumsum() - lengths, lengths, np.arange(count))
        return Resolved([part], count, np.empty(0, dtype=np.int64), len(tokens))


def resolve_all(asked: Sequence[Candidates]) -> list[Resolved | Exception]:
    """`resolve` of each, or what it raised; ids of one collection are looked up together."""
    resolved: list[Resolved | Exception | None] = [None] * len(asked)
    by_collection: dict[int, list[tuple[int, StoredCandidates]]] = {}
    for number, candidates in enumerate(asked):
        if type(candidates) is StoredCandidates:  # another kind of them may resolve in a way of its own
            by_collection.setdefault(id(candidates.collection), []).append((number, candidates))
    for members in by_collection.values():
        if len(members) == 1:
            continue
        try:
            located = members[0][1].collection.locate_all([candidates.ids for _, candidates in members])
        except Exception:
            continue  # only those that are at fault fail, one by one
        for (number, candidates), places in zip(members, located, strict=True):
            resolved[number] = candidates.resolved(places)
    return [
        resolve(candidates) if found is None else found
        for candidates, found in zip(asked, resolved, strict=True)
    ]


def resolve(candidates: Candidates) -> Resolved | Exception:
    """`candidates.resolve()`, or what it raised."""
    try:
        return candidates.resolve()
    except Exception as error:
        return error
