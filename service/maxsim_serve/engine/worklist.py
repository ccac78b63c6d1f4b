"""Many requests as one work list: (query, document) pairs over ragged queries, one launch a token tensor."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import maxsim

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
    outputs = [torch.full((r.count,), float("-inf"), dtype=torch.float32) for r in resolved]
    groups: dict[int, list[tuple[int, int]]] = {}
    for request, r in enumerate(resolved):
        for number, part in enumerate(r.parts):
            groups.setdefault(id(part.tokens), []).append((request, number))

    launches = []
    started = time.perf_counter()
    for members in groups.values():
        parts = [resolved[request].parts[number] for request, number in members]
        documents = maxsim.Spans(
            parts[0].tokens,
            torch.cat([part.starts for part in parts]),
            torch.cat([part.lengths for part in parts]),
        )
        ragged = maxsim.Ragged.from_list([queries[request] for request, _ in members])
        counts = torch.tensor([len(part.starts) for part in parts])
        pairs = torch.repeat_interleave(torch.arange(len(parts)), counts)
        scores = maxsim.score_pairs(ragged, documents, pairs, torch.arange(len(pairs)))
        launches.append(
            (maxsim.plan(ragged, documents).kernel, str(parts[0].tokens.dtype).removeprefix("torch."))
        )
        for (request, _), part, chunk in zip(
            members, parts, torch.split(scores, counts.tolist()), strict=True
        ):
            outputs[request][part.positions] = chunk
    return Scored(outputs, launches, time.perf_counter() - started)
