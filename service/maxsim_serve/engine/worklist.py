"""Many requests as work lists on the CPU: pairs over ragged queries, one launch a token tensor."""

import functools
import time
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

import maxsim

from ..store import Part
from .scorer import Request, Scored

__all__ = ["CpuScorer", "by_position", "joined"]

_Value = TypeVar("_Value", bound=np.generic)


class CpuScorer:
    """Scores in the calling thread; queries stay float32."""

    depth = 1
    device = torch.device("cpu")

    def bind(self) -> None:
        """Nothing is bound to a thread."""

    def placed(self, query: NDArray[np.generic], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        return query.astype(dtype)

    def launch(self, requests: Sequence[Request]) -> "_Done":
        return _Done(_score(requests))

    def explain(self, query: NDArray[np.generic], rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        explained = maxsim.explain(torch.from_numpy(query).float(), rows)
        return explained.tokens, explained.similarities

    def release(self) -> None:
        """The allocator of the host keeps nothing back."""


class _Done:
    def __init__(self, scored: Scored) -> None:
        self._scored = scored

    def glance(self) -> None:
        """Nothing is to be waited for."""

    def wait(self) -> Scored:
        return self._scored


def _score(requests: Sequence[Request]) -> Scored:
    """Pairs are grouped by the tensor that holds their documents, so that requests for the same
    collection share a launch. A pair's score does not depend on what else is in its group.
    """
    started = time.perf_counter()
    groups: dict[int, list[tuple[int, Part]]] = {}
    for number, request in enumerate(requests):
        for part in request.resolved.parts:
            groups.setdefault(id(part.tokens), []).append((number, part))

    queries = [torch.from_numpy(request.query).float() for request in requests]
    launches = []
    pieces: list[list[tuple[Part, NDArray[np.float32]]]] = [[] for _ in requests]
    for members in groups.values():
        parts = [part for _, part in members]
        tokens = parts[0].tokens
        counts = [len(part.positions) for part in parts]
        documents = maxsim.Spans(
            tokens,
            torch.from_numpy(joined([part.starts for part in parts])),
            torch.from_numpy(joined([part.lengths for part in parts])),
        )
        ragged = maxsim.Ragged.from_list([queries[number] for number, _ in members])
        of_query = torch.from_numpy(np.repeat(np.arange(len(parts)), counts))
        scores = maxsim.score_pairs(ragged, documents, of_query, torch.arange(len(of_query)))
        launches.append((_kernel(tokens.dtype), tokens.dtype))
        for (number, part), chunk in zip(members, torch.split(scores, counts), strict=True):
            pieces[number].append((part, chunk.numpy()))
    results = [by_position(r.resolved.count, of) for r, of in zip(requests, pieces, strict=True)]
    return Scored(results, launches, {"kernel": time.perf_counter() - started})


def by_position(count: int, pieces: Sequence[tuple[Part, NDArray[np.float32]]]) -> NDArray[np.float32]:
    """One request's scores `[count]`, put together from those of its parts."""
    if len(pieces) == 1 and len(pieces[0][1]) == count:
        return pieces[0][1]  # all of them, and a part keeps the order of its positions
    scores = np.full(count, -np.inf, dtype=np.float32)
    for part, piece in pieces:
        scores[part.positions] = piece
    return scores


def joined(arrays: Sequence[NDArray[_Value]]) -> NDArray[_Value]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@functools.cache
def _kernel(dtype: torch.dtype) -> str:
    """What scores documents of this dtype, whatever their sizes; queries are always float32."""
    query = torch.zeros(1, 16)
    return maxsim.plan(query, query.to(dtype)).kernel
