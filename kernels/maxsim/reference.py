"""The definition of every operator, in plain PyTorch, on any device. A kernel is a faster spelling of it.

    score(Q, D) = Σ_i max_j <Q_i, D_j>      i over the active rows of Q, j over the active tokens of D

Half-precision inputs are converted exactly to float32; products, maxima and sums are float32. With a
float64 operand everything, scores included, is float64. A document without an active token scores −∞;
a query without an active row scores 0, an empty sum, whatever the document. A NaN in an active
row or token makes the scores of its own pairs NaN and touches no other.
"""

import torch
from torch import Tensor

from maxsim.rows import Layout, Operand, Side, masked, side

__all__ = ["all_pairs", "compute_dtype", "explain", "listed_pairs", "score", "score_pairs", "top_k"]


def score(
    queries: Operand,
    documents: Operand,
    *,
    query_mask: Tensor | None = None,
    document_mask: Tensor | None = None,
) -> Tensor:
    """All pairs → [Nq, Nd]; arguments as for `maxsim.score`. Differentiable by PyTorch's own autograd."""
    return all_pairs(
        masked(side(queries, "queries"), query_mask, "query_mask"),
        masked(side(documents, "documents"), document_mask, "document_mask"),
    )


def score_pairs(queries: Operand, documents: Operand, query_index: Tensor, document_index: Tensor) -> Tensor:
    """Listed pairs → [P]; arguments as for `maxsim.score_pairs`."""
    left, right = side(queries, "queries"), side(documents, "documents")
    return listed_pairs(left, right, query_index, document_index)


def explain(query: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
    """query [Lq, d], document [Ld, d] → (winning token int64 [Lq], its similarity [Lq]).

    The lowest token wins a tie; without a token the answer is −1 and −∞.
    """
    similarities = _similarities(query, document)
    if similarities.shape[1] == 0:
        none = torch.full(similarities.shape[:1], -1, dtype=torch.int64, device=query.device)
        return none, similarities.new_full(similarities.shape[:1], -torch.inf)
    best = similarities.max(dim=1)
    return best.indices, best.values


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """scores [..., N] → (values, positions) [..., min(k, N)], in the order of `maxsim.top_k`."""
    by_score = torch.sort(
        scores.nan_to_num(-torch.inf, torch.inf, -torch.inf), descending=True, stable=True
    ).indices
    nan_last = torch.sort(scores.gather(-1, by_score).isnan().to(torch.int8), stable=True).indices
    positions = by_score.gather(-1, nan_last)[..., :k]
    return scores.gather(-1, positions), positions


def all_pairs(queries: Side, documents: Side) -> Tensor:
    """Every pair of two sides already read, [Nq, Nd]."""
    device, shape = queries.layout.device, (queries.layout.items, documents.layout.items)
    query_index = torch.arange(shape[0], device=device).repeat_interleave(shape[1])
    document_index = torch.arange(shape[1], device=device).repeat(shape[0])
    return listed_pairs(queries, documents, query_index, document_index).view(shape)


def listed_pairs(left: Side, right: Side, query_index: Tensor, document_index: Tensor) -> Tensor:
    """Listed pairs of two sides already read, [P]."""
    queries, documents = left.rows(), right.rows()
    pairs = zip(query_index.tolist(), document_index.tolist(), strict=True)
    scores = [_pair(queries.matrix(q), documents.matrix(d)) for q, d in pairs]
    if not scores:
        return queries.tokens.new_zeros(0, dtype=compute_dtype(queries.tokens, documents.tokens))
    return torch.stack(scores)


def compute_dtype(query: Tensor | Layout, document: Tensor | Layout) -> torch.dtype:
    """The one dtype a pair is computed and answered in: float32, or float64 if either side is."""
    return torch.float64 if torch.float64 in (query.dtype, document.dtype) else torch.float32


def _similarities(query: Tensor, document: Tensor) -> Tensor:
    """Inner products [Lq, Ld] of query [Lq, d] with document [Ld, d]."""
    dtype = compute_dtype(query, document)
    return query.to(dtype) @ document.to(dtype).T


def _pair(query: Tensor, document: Tensor) -> Tensor:
    """The score, 0-D, of query [Lq, d] and document [Ld, d], both active rows only."""
    similarities = _similarities(query, document)
    if len(query) == 0:
        return similarities.new_zeros(())
    if len(document) == 0:
        return similarities.new_full((), -torch.inf)
    return similarities.max(dim=1).values.sum()
