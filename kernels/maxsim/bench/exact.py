"""MaxSim in float64 by large matrix products: the definition, fast enough to hold every case to on a GPU.

`maxsim.reference` goes pair by pair; the two are compared in the tests.
"""

import torch
from torch import Tensor

from maxsim import Ragged

__all__ = ["relative_error", "scores", "top_agreement"]

# Values of the largest intermediate: 512 MiB of float64.
CHUNK_VALUES = 2**26
TOP = 20


def scores(queries: Tensor, documents: Ragged, pairs: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """queries [Nq, Lq, d] with documents → float64 [Nq, Nd]; for pairs (two int64 [P], as ours) → [P]."""
    if pairs is None:
        everything = torch.arange(len(documents), device=queries.device)
        return torch.stack([_one(query, documents, everything) for query in queries])
    query_index, document_index = pairs
    answer = torch.empty(len(query_index), dtype=torch.float64, device=queries.device)
    for i, query in enumerate(queries):
        mine = (query_index == i).nonzero().squeeze(1)
        answer[mine] = _one(query, documents, document_index[mine])
    return answer


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """The largest |found − wanted| / |wanted|; infinite for another shape or anything that is not finite."""
    if found.shape != wanted.shape or not bool(found.isfinite().all()):
        return float("inf")
    return float(((found.double() - wanted) / wanted).abs().max())


def top_agreement(found: Tensor, wanted: Tensor) -> float:
    """The share of the 20 best of a row of wanted [N] or [B, N] that found has too; the rows' mean."""
    if found.ndim == 1:
        found, wanted = found[None], wanted[None]
    k = min(TOP, wanted.shape[1])
    best, expected = found.topk(k).indices, wanted.topk(k).indices
    return float((best[:, :, None] == expected[:, None, :]).any(dim=1).double().mean())


def _one(query: Tensor, documents: Ragged, chosen: Tensor) -> Tensor:
    """query [Lq, d] with the documents chosen int64 [n] → float64 [n]."""
    query = query.double()
    longest = max(int(documents.lengths[chosen].max()), 1)
    within = torch.arange(longest, device=query.device)
    parts = []
    for some in chosen.split(max(CHUNK_VALUES // (longest * max(query.shape)), 1)):
        rows = (documents.offsets[some, None] + within).clamp(max=len(documents.tokens) - 1)
        tokens = documents.tokens[rows].double()  # [n, longest, d]
        absent = within >= documents.lengths[some, None]
        similarities = (tokens @ query.T).masked_fill_(absent[:, :, None], -torch.inf)  # [n, longest, Lq]
        parts.append(similarities.amax(dim=1).sum(dim=1))
    return torch.cat(parts)
