"""What `dispatch` calls on a GPU: two sides → a choice → launches.

No call waits for the device. What a kernel needs of sizes it reads on the device itself.
"""

import torch
from torch import Tensor

from maxsim import reference
from maxsim.forward import work
from maxsim.forward.choose import Choice, choose
from maxsim.forward.launch import enqueue
from maxsim.rows import Side

__all__ = ["all_pairs", "explain", "listed_pairs", "run"]


def all_pairs(left: Side, right: Side) -> Tensor:
    """Every pair → float32 [Nq, Nd]."""
    queries, documents = left.layout, right.layout
    # Sizes one by one: a tuple of them takes PyTorch 0.7 µs longer to read.
    scores = torch.empty(queries.items, documents.items, dtype=torch.float32, device=documents.device)
    if queries.items and documents.items:
        run(choose(left, right), left, right, None, None, scores)
    return scores


def listed_pairs(left: Side, right: Side, query_index: Tensor, document_index: Tensor) -> Tensor:
    """Listed pairs → float32 [P]. A pair whose index is out of range scores NaN."""
    pairs = query_index.numel()
    scores = torch.empty(pairs, dtype=torch.float32, device=right.layout.device)
    if pairs:
        run(choose(left, right, pairs), left, right, query_index, document_index, scores)
    return scores


def explain(query: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
    """query [Lq, d], document [Ld, d] → (winning token int64 [Lq], its similarity float32 [Lq])."""
    return reference.explain(query, document)


def run(choice: Choice, left: Side, right: Side, query_index: Tensor | None, document_index: Tensor | None,
        scores: Tensor) -> None:  # fmt: skip
    """Fill scores [Nq, Nd], or [P] of a work list, by a choice. Enqueues; returns at once."""
    queries, query_starts, query_lengths, query_mask, left_layout = left
    documents, document_starts, document_lengths, document_mask, right_layout = right
    listed = query_index is not None
    columns = right_layout.items if query_index is None else scores.numel()
    todo = work.prepared(choice, left_layout, right_layout, listed, columns)
    scratch = scores
    if todo.scratch is not None:
        scratch = torch.empty(todo.scratch, dtype=todo.dtype, device=right_layout.device)
    # In the order of `operands.ORDER`.
    operands = (
        queries, query_starts, query_lengths, query_mask,
        documents, document_starts, document_lengths, document_mask,
        query_index, document_index, scores, scratch, None,
    )  # fmt: skip
    enqueue(todo.whole, operands)
    for first in range(todo.batch, columns, todo.batch):
        enqueue(todo.whole if first + todo.batch <= columns else todo.rest, operands, first)
