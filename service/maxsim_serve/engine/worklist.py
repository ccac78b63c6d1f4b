"""Many requests as one work list: (query, document) pairs over ragged queries, one launch a token tensor."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

import maxsim

from ..store import Part
from .candidates import Resolved

__all__ = ["Scored", "score"]


@dataclass(frozen=True, slots=True)
class Scored:
    """`scores[i]` fp32 `[count_i]` for request i, −∞ where missing. `launches` are (kernel, dtype)."""

    scores: Sequence[torch.Tensor]
    launches: Sequence[tuple[str, str]]
    kernel_s: float


def score(queries: Sequence[torch.Tensor], resolved: Sequence[Resolved]) -> Scored:
    """Score request i's query `[Lq_i, dim_i]` against its candidates.

    Pairs are grouped by the tensor that holds their documents, so that requests for the same
    collection share a launch. A pair's score does not depend on what else is in its group.
    """
    started = time.perf_counter()
    groups: dict[int, list[tuple[int, int]]] = {}
    for request, r in enumerate(resolved):
        for number, part in enumerate(r.parts):
            groups.setdefault(id(part.tokens), []).append((request, number))

    launches = []
    pieces: list[list[tuple[Part, torch.Tensor]]] = [[] for _ in resolved]
    for members in groups.values():
        parts = [resolved[request].parts[number] for request, number in members]
        tokens = parts[0].tokens
        counts = [len(part.positions) for part in parts]
        documents = maxsim.Spans(
            tokens, _joined([part.starts for part in parts]), _joined([part.lengths for part in parts])
        )
        ragged = maxsim.Ragged.from_list([queries[request] for request, _ in members])
        of_query = torch.from_numpy(np.repeat(np.arange(len(parts)), counts))
        scores = maxsim.score_pairs(ragged, documents, of_query, torch.arange(len(of_query)))
        launches.append((_kernel(tokens.device, tokens.dtype), str(tokens.dtype).removeprefix("torch.")))
        for (request, _), part, chunk in zip(members, parts, torch.split(scores, counts), strict=True):
            pieces[request].append((part, chunk))
    scores_of = [_by_position(r.count, of) for r, of in zip(resolved, pieces, strict=True)]
    return Scored(scores_of, launches, time.perf_counter() - started)


def _by_position(count: int, pieces: Sequence[tuple[Part, torch.Tensor]]) -> torch.Tensor:
    """One request's scores `[count]`, put together from those of its parts."""
    if len(pieces) == 1 and len(pieces[0][1]) == count:
        return pieces[0][1]  # all of them, and a part keeps the order of its positions
    scores = torch.full((count,), float("-inf"), dtype=torch.float32)
    for part, piece in pieces:
        scores[part.positions] = piece
    return scores


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


@functools.cache
def _kernel(device: torch.device, dtype: torch.dtype) -> str:
    """What scores documents of this kind; queries are always float32."""
    query = torch.zeros(1, 16, device=device)
    return maxsim.plan(query, query.to(dtype)).kernel
