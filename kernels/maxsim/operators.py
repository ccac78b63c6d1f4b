"""The public functions: check the operands, let `dispatch` decide, run the kernel."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from maxsim import autograd, dispatch
from maxsim.errors import DeviceError, IndexRangeError, ShapeError
from maxsim.ragged import check_integers, check_tokens
from maxsim.rows import Operand, Parts, Side, count, masked, parts, side

if TYPE_CHECKING:
    from maxsim.forward.warmup import Warmup

__all__ = ["Explanation", "compilations", "explain", "plan", "score", "score_pairs", "warmup"]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Which document token each query row matched.

    tokens       int64 [Lq], the winning token's position, the lowest of equals; −1 in an empty document
    similarities float32 [Lq], its inner product; −∞ without a token. Their sum is the score, up to rounding.
    """

    tokens: Tensor
    similarities: Tensor


def score(
    queries: Operand,
    documents: Operand,
    *,
    query_mask: Tensor | None = None,
    document_mask: Tensor | None = None,
) -> Tensor:
    """MaxSim of every query with every document → float32 [Nq, Nd].

    Each side is a tensor [L, d] (one item) or [N, L, d], a Ragged or a Spans, in float16, bfloat16
    or float32; the sides may differ, every input is converted exactly to float32. (float64 is
    scored, and answered, in float64.) A mask is boolean with one value a token: the shape of the
    tokens without the last axis. Holes are fine; what is false is never selected and adds nothing.

    A document without an active token scores −∞, with gradient zero; a query without an active row
    scores 0 with every document. Non-finite tokens are not refused: a NaN makes the scores of its own
    pairs NaN and touches no other.

    With one kernel on one machine a pair's score is bit-identical whatever else is scored beside it,
    in whatever order, by whichever form of operand. Differentiable in the tokens of both sides; the
    lowest token takes the gradient of a tie. Maxima are added in float64, the score is rounded once.

    Raises ShapeError, DTypeError or DeviceError.
    """
    if autograd.wanted(queries, documents):
        return autograd.score(*_parts(queries, documents), query_mask, document_mask)
    left, right = _sides(queries, documents)
    left, right = masked(left, query_mask, "query_mask"), masked(right, document_mask, "document_mask")
    return dispatch.kernel(left.layout, right.layout).all_pairs(left, right)


def score_pairs(queries: Operand, documents: Operand, query_index: Tensor, document_index: Tensor) -> Tensor:
    """MaxSim of a work list → float32 [P]: pair p is (queries[query_index[p]], documents[document_index[p]]).

    The indices are int64 [P], in any order, and may repeat. Everything else, gradients and bits
    included, is as in `score`. Raises IndexRangeError too; on a GPU, where looking would make the host
    wait, a pair whose index is out of range scores NaN instead.
    """
    if autograd.wanted(queries, documents):
        taken = _parts(queries, documents)
        _check_listing(query_index, document_index, taken[0].tokens.device, *map(count, taken))
        return autograd.score_pairs(*taken, query_index, document_index)
    left, right = _sides(queries, documents)
    _check_listing(query_index, document_index, left.layout.device, left.layout.items, right.layout.items)
    return dispatch.kernel(left.layout, right.layout).listed_pairs(left, right, query_index, document_index)


def explain(query: Tensor, document: Tensor) -> Explanation:
    """For each row of query [Lq, d], the token of document [Ld, d] that it matched and how well."""
    check_tokens(query, "query")
    check_tokens(document, "document")
    _check_tensors(query, document)
    return Explanation(*dispatch.kernel(query, document).explain(query.detach(), document.detach()))


def plan(queries: Operand, documents: Operand, *, pairs: int | None = None) -> dispatch.Plan:
    """What `score` would run for these operands, or `score_pairs` for a work list of `pairs`, and why.

    Runs nothing. On a GPU the kernel depends on the shapes.
    """
    return dispatch.decide(*_sides(queries, documents), pairs)


def warmup(
    dims: Sequence[int] = (128,),
    dtypes: Sequence[torch.dtype] = (torch.float16,),
    *,
    device: torch.device | str = "cuda",
) -> "Warmup":
    """Compile every kernel for these token widths and dtypes on a GPU → how many, and in how many seconds.

    After it no call with such operands compiles anything, whatever its sizes; rows that do not begin at
    multiples of 16 bytes are compiled for at first use. float32 queries against each dtype are included.
    Raises DeviceError for a device whose kernels are not compiled at run time.
    """
    where = torch.device(device)
    if where.type != "cuda":
        raise DeviceError(f"device: a CUDA device wanted, got {where}; other devices need no warm-up")
    from maxsim.forward.warmup import warmup as compile_all

    index = torch.cuda.current_device() if where.index is None else where.index
    return compile_all(dims, dtypes, torch.device("cuda", index))


def compilations() -> int:
    """How many kernel variants this process has compiled so far; stays as it is after `warmup`."""
    if "maxsim.forward.launch" not in sys.modules:
        return 0
    from maxsim.forward.launch import compilations as counted

    return counted()


def _sides(queries: Operand, documents: Operand) -> tuple[Side, Side]:
    left, right = side(queries, "queries"), side(documents, "documents")
    one, other = left.layout, right.layout
    _check_together(one.dim, other.dim, one.device, other.device)
    return left, right


def _parts(queries: Operand, documents: Operand) -> tuple[Parts, Parts]:
    left, right = parts(queries, "queries"), parts(documents, "documents")
    _check_tensors(left.tokens, right.tokens)
    return left, right


def _check_tensors(query: Tensor, document: Tensor) -> None:
    _check_together(query.shape[-1], document.shape[-1], query.device, document.device)


def _check_together(
    query_dim: int, document_dim: int, query_device: torch.device, document_device: torch.device
) -> None:
    if query_dim != document_dim:
        raise ShapeError(
            f"queries and documents: widths {query_dim} and {document_dim} differ; encode both with one model"
        )
    if query_device != document_device:
        raise DeviceError(f"queries and documents: on {query_device} and {document_device}; move one of them")


def _check_listing(
    query_index: Tensor, document_index: Tensor, device: torch.device, queries: int, documents: int
) -> None:
    """Refuse a work list that is none for so many queries and documents."""
    check_integers(query_index, "query_index", device)
    check_integers(document_index, "document_index", device)
    if query_index.shape != document_index.shape:
        raise ShapeError(
            f"query_index and document_index: {len(query_index)} and {len(document_index)} values differ"
        )
    _check_range(query_index, "query_index", queries)
    _check_range(document_index, "document_index", documents)


def _check_range(index: Tensor, name: str, items: int) -> None:
    if not index.is_cpu or len(index) == 0:
        return
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= items:
        raise IndexRangeError(
            f"{name}: values from 0 to {items - 1} wanted ({items} items), got {low} to {high}"
        )
