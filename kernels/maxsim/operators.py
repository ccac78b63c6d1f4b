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
from maxsim.rows import Operand, Parts, count, parts

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
    left, right = _sides(queries, documents)
    return autograd.score(left, query_mask, right, document_mask)


def score_pairs(queries: Operand, documents: Operand, query_index: Tensor, document_index: Tensor) -> Tensor:
    """MaxSim of a work list → float32 [P]: pair p is (queries[query_index[p]], documents[document_index[p]]).

    The indices are int64 [P], in any order, and may repeat. Everything else, gradients and bits
    included, is as in `score`. Raises IndexRangeError too; on a GPU, where looking would make the host
    wait, a pair whose index is out of range scores NaN instead.
    """
    left, right = _sides(queries, documents)
    check_integers(query_index, "query_index", left[0].device)
    check_integers(document_index, "document_index", left[0].device)
    if len(query_index) != len(document_index):
        raise ShapeError(
            f"query_index and document_index: {len(query_index)} and {len(document_index)} values differ"
        )
    _check_range(query_index, "query_index", count(left))
    _check_range(document_index, "document_index", count(right))
    return autograd.score_pairs(left, right, query_index, document_index)


def explain(query: Tensor, document: Tensor) -> Explanation:
    """For each row of query [Lq, d], the token of document [Ld, d] that it matched and how well."""
    check_tokens(query, "query")
    check_tokens(document, "document")
    _check_together(query, document)
    return Explanation(*dispatch.kernel(query, document).explain(query.detach(), document.detach()))


def plan(queries: Operand, documents: Operand, *, pairs: int | None = None) -> dispatch.Plan:
    """What `score` would run for these operands, or `score_pairs` for a work list of `pairs`, and why.

    Runs nothing. On a GPU the kernel depends on the shapes.
    """
    left, right = _sides(queries, documents)
    return dispatch.decide(left, right, pairs)


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

    return compile_all(dims, dtypes, torch.device("cuda", where.index or torch.cuda.current_device()))


def compilations() -> int:
    """How many kernel variants this process has compiled so far; stays as it is after `warmup`."""
    if "maxsim.forward.launch" not in sys.modules:
        return 0
    from maxsim.forward.launch import compilations as counted

    return counted()


def _sides(queries: Operand, documents: Operand) -> tuple[Parts, Parts]:
    left, right = parts(queries, "queries"), parts(documents, "documents")
    _check_together(left[0], right[0])
    return left, right


def _check_together(query: Tensor, document: Tensor) -> None:
    if query.shape[-1] != document.shape[-1]:
        raise ShapeError(
            f"queries and documents: widths {query.shape[-1]} and {document.shape[-1]} differ; "
            "encode both with one model"
        )
    if query.device != document.device:
        raise DeviceError(f"queries and documents: on {query.device} and {document.device}; move one of them")


def _check_range(index: Tensor, name: str, items: int) -> None:
    if len(index) == 0 or index.device.type != "cpu":
        return
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= items:
        raise IndexRangeError(
            f"{name}: values from 0 to {items - 1} wanted ({items} items), got {low} to {high}"
        )
