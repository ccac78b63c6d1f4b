"""The two scoring operators as PyTorch knows them: a fake kernel for torch.compile, and a gradient.

Both are registered with `torch.library.custom_op`. A call that needs neither (`wanted`) goes straight to
its kernel: the registry costs a hundred microseconds, a tenth of a rerank.

Backward repeats a document's similarities instead of keeping them: memory is one document's,
[Σ Lq, Ld], where the naive graph holds all. The gradient of a pair flows, for each query row, to
that row and to the one token that won it.
"""

from typing import Any

import torch
from torch import Tensor

from maxsim import dispatch
from maxsim.reference import compute_dtype
from maxsim.rows import Operand, Parts, Rows, count, masked, side

__all__ = ["score", "score_pairs", "wanted"]


def wanted(queries: Operand, documents: Operand) -> bool:
    """Whether a call has to go through the registry: it is compiled, or somebody wants its gradient."""
    wants_gradient = torch.is_grad_enabled() and (queries.requires_grad or documents.requires_grad)
    return wants_gradient or torch.compiler.is_compiling()


def score(
    queries: Parts, documents: Parts, query_mask: Tensor | None, document_mask: Tensor | None
) -> Tensor:
    """All pairs → [Nq, Nd]."""
    scores: Tensor = _score(*queries[:3], query_mask, *documents[:3], document_mask)
    return scores


def score_pairs(queries: Parts, documents: Parts, query_index: Tensor, document_index: Tensor) -> Tensor:
    """Listed pairs → [P]."""
    scores: Tensor = _score_pairs(*queries[:3], *documents[:3], query_index, document_index)
    return scores


@torch.library.custom_op("maxsim::score", mutates_args=())
def _score(
    queries: Tensor,
    query_starts: Tensor | None,
    query_lengths: Tensor | None,
    query_mask: Tensor | None,
    documents: Tensor,
    document_starts: Tensor | None,
    document_lengths: Tensor | None,
    document_mask: Tensor | None,
) -> Tensor:
    left = side(Parts(queries, query_starts, query_lengths), "queries")
    right = side(Parts(documents, document_starts, document_lengths), "documents")
    left, right = masked(left, query_mask, "query_mask"), masked(right, document_mask, "document_mask")
    return dispatch.kernel(left.layout, right.layout).all_pairs(left, right)


@torch.library.custom_op("maxsim::score_pairs", mutates_args=())
def _score_pairs(
    queries: Tensor,
    query_starts: Tensor | None,
    query_lengths: Tensor | None,
    documents: Tensor,
    document_starts: Tensor | None,
    document_lengths: Tensor | None,
    query_index: Tensor,
    document_index: Tensor,
) -> Tensor:
    left = side(Parts(queries, query_starts, query_lengths), "queries")
    right = side(Parts(documents, document_starts, document_lengths), "documents")
    return dispatch.kernel(left.layout, right.layout).listed_pairs(left, right, query_index, document_index)


@_score.register_fake
def _score_fake(
    queries: Tensor,
    query_starts: Tensor | None,
    query_lengths: Tensor | None,
    query_mask: Tensor | None,
    documents: Tensor,
    document_starts: Tensor | None,
    document_lengths: Tensor | None,
    document_mask: Tensor | None,
) -> Tensor:
    shape = count(Parts(queries, query_starts)), count(Parts(documents, document_starts))
    return queries.new_empty(shape, dtype=compute_dtype(queries, documents))


@_score_pairs.register_fake
def _score_pairs_fake(
    queries: Tensor,
    query_starts: Tensor | None,
    query_lengths: Tensor | None,
    documents: Tensor,
    document_starts: Tensor | None,
    document_lengths: Tensor | None,
    query_index: Tensor,
    document_index: Tensor,
) -> Tensor:
    return queries.new_empty(query_index.shape[0], dtype=compute_dtype(queries, documents))


@torch.library.custom_op("maxsim::gradients", mutates_args=())
def _gradients(
    queries: Tensor,
    query_starts: Tensor | None,
    query_lengths: Tensor | None,
    query_mask: Tensor | None,
    documents: Tensor,
    document_starts: Tensor | None,
    document_lengths: Tensor | None,
    document_mask: Tensor | None,
    query_index: Tensor,
    document_index: Tensor,
    weights: Tensor,
    wants_queries: bool,
    wants_documents: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients in both sides' tokens, of their shapes and dtypes, from those of listed pairs [P].
    A side that is not wanted, a frozen store say, gets an empty tensor and costs no memory."""
    # Laid out in order, a tensor's row table is numbered like its gradient's.
    left_side = side(Parts(queries.contiguous(), query_starts, query_lengths), "queries")
    right_side = side(Parts(documents.contiguous(), document_starts, document_lengths), "documents")
    left = masked(left_side, query_mask, "query_mask").rows()
    right = masked(right_side, document_mask, "document_mask").rows()
    query_grad = _accumulator(left, weights, wants_queries)
    document_grad = _accumulator(right, weights, wants_documents)
    by_document = document_index.argsort(stable=True)
    by_document = by_document[weights[by_document] != 0]
    wanted, pairs = torch.unique_consecutive(document_index[by_document], return_counts=True)
    for document, group in zip(wanted, torch.split(by_document, pairs.tolist()), strict=True):
        tokens, _ = right.of(document[None])
        lines, owner = left.of(query_index[group])
        if len(tokens) == 0 or len(lines) == 0:
            continue
        query, matrix = left.tokens[lines].to(weights.dtype), right.tokens[tokens].to(weights.dtype)
        winners = (query @ matrix.T).max(dim=1).indices
        weight = weights[group][owner, None]
        if wants_queries:
            query_grad.index_add_(0, lines, weight * matrix[winners])
        if wants_documents:
            document_grad.index_add_(0, tokens[winners], weight * query)
    return _shaped(query_grad, queries, wants_queries), _shaped(document_grad, documents, wants_documents)


def _accumulator(side: Rows, weights: Tensor, wanted: bool) -> Tensor:
    """Zeros like the side's row table, in the dtype gradients are added up in."""
    return weights.new_zeros(side.tokens.shape if wanted else (0,))


def _shaped(grad: Tensor, tokens: Tensor, wanted: bool) -> Tensor:
    return grad.view(tokens.shape if wanted else (0,)).to(tokens.dtype)


@_gradients.register_fake
def _gradients_fake(queries: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    documents, wants_queries, wants_documents = rest[3], rest[-2], rest[-1]
    return (
        queries.new_empty(queries.shape if wants_queries else (0,)),
        documents.new_empty(documents.shape if wants_documents else (0,)),
    )


def _score_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _score_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wants = ctx.needs_input_grad[0], ctx.needs_input_grad[4]
    queries, documents = grad.shape
    query_index = torch.arange(queries, device=grad.device).repeat_interleave(documents)
    document_index = torch.arange(documents, device=grad.device).repeat(queries)
    left, right = _gradients(*ctx.saved_tensors, query_index, document_index, grad.reshape(-1), *wants)
    return left if wants[0] else None, None, None, None, right if wants[1] else None, None, None, None


def _score_pairs_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wants = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
    left_parts, right_parts, pairs = ctx.saved_tensors[:3], ctx.saved_tensors[3:6], ctx.saved_tensors[6:]
    left, right = _gradients(*left_parts, None, *right_parts, None, *pairs, grad, *wants)
    return left if wants[0] else None, None, None, right if wants[1] else None, None, None, None, None


_score.register_autograd(_score_backward, setup_context=_score_setup)
_score_pairs.register_autograd(_score_pairs_backward, setup_context=_score_setup)
