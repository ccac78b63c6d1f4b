"""What `dispatch` calls on a GPU: two sides → a choice → launches.

No call waits for the device. What a kernel needs of sizes it reads on the device itself.
"""

from functools import cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from maxsim import reference
from maxsim.forward import finish as finishing
from maxsim.forward import long_query, short_query
from maxsim.forward.arguments import flag, strides
from maxsim.forward.choose import Choice, aligned, choose, compute_dtype, hopper_or_newer, processors, summed
from maxsim.forward.launch import INTERPRETED, Options
from maxsim.forward.rowsum import BLOCK_ROWS
from maxsim.rows import Side

__all__ = ["all_pairs", "explain", "listed_pairs", "run"]

# Row maxima held at a time; more documents are taken in batches.
MAXIMA_BYTES = 16 << 20

_COMPUTE = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def all_pairs(left: Side, right: Side) -> Tensor:
    """Every pair → float32 [Nq, Nd]."""
    queries, documents = left.layout, right.layout
    # Sizes one by one: a tuple of them takes PyTorch 0.7 µs longer to read.
    scores = torch.empty(queries.items, documents.items, dtype=torch.float32, device=documents.device)
    if scores.numel():
        run(choose(left, right), left, right, None, None, scores)
    return scores


def listed_pairs(left: Side, right: Side, query_index: Tensor, document_index: Tensor) -> Tensor:
    """Listed pairs → float32 [P]. A pair whose index is out of range scores NaN."""
    pairs = query_index.shape[0]
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
    if choice.config.kernel in ("short_query", "short_hopper"):
        _short(choice, left, right, query_index, document_index, scores)
    else:
        _long(choice, left, right, query_index, document_index, scores)


def _short(choice: Choice, left: Side, right: Side, query_index: Tensor | None, document_index: Tensor | None,
           scores: Tensor) -> None:  # fmt: skip
    maxima = scores
    if choice.segments > 1:
        shape = (scores.numel(), choice.segments, choice.config.query_rows)
        maxima = torch.empty(shape, dtype=torch.float32, device=scores.device)
    if choice.config.kernel == "short_hopper":
        _short_hopper().launch(choice, left, right, query_index, document_index, scores, maxima)
    else:
        _short_portable(choice, left, right, query_index, document_index, scores, maxima)
    if choice.segments > 1:
        cells = maxima.view(scores.numel(), -1)
        # Without a list there is one query, or nothing would have been split: a column is a document.
        _finish(cells, left, query_index, document_index, right, scores, 0, choice.segments, False)


@cache
def _short_hopper() -> Any:
    """Gluon is imported where there is a GPU for it."""
    from maxsim.forward import short_hopper

    return short_hopper


def _short_portable(choice: Choice, left: Side, right: Side, query_index: Tensor | None,
                    document_index: Tensor | None, scores: Tensor, maxima: Tensor) -> None:  # fmt: skip
    config, one, other = choice.config, left.layout, right.layout
    straight = aligned(left) and aligned(right)
    arguments = (
        left.tokens, left.starts, left.lengths, left.mask,
        right.tokens, right.starts, right.lengths, right.mask,
        query_index, document_index, scores, maxima,
        *strides(one, straight), one.item_step, one.step, one.length, int(one.listed), int(one.masked),
        *strides(other, straight), other.item_step, other.step, other.length, int(other.listed),
        one.items, other.items, flag(query_index), choice.segments, config.query_rows,
    )  # fmt: skip

    def constants() -> tuple[Any, ...]:
        compute = _COMPUTE[compute_dtype(one, other)]
        return (
            other.dim, config.columns, config.query_rows, config.tokens, config.stages, other.masked,
            straight, choice.chunked, compute, INTERPRETED,
        )  # fmt: skip

    key = (config.key, one.dtype, other.dtype, other.masked, straight, choice.chunked)
    programs = scores.numel() * choice.segments
    short_query.KERNEL.launch(programs, key, arguments, constants, config.options, other.device)


def _long(choice: Choice, left: Side, right: Side, query_index: Tensor | None, document_index: Tensor | None,
          scores: Tensor) -> None:  # fmt: skip
    config, queries = choice.config, left.layout
    # A work list of several queries has cells of its own query's rows; else all rows lie as in the table.
    packed = query_index is None or queries.items == 1
    if queries.listed:
        rows = queries.table_rows if packed else queries.longest or 0
    else:
        rows = queries.items * queries.length if packed else queries.length
    if config.kernel == "hopper" and choice.segments == 1 and summed(queries):
        _summed(choice, left, right, query_index, document_index, scores, rows)
        return
    columns = scores.shape[-1]
    chunks = -(-rows // config.query_rows) if rows else 0
    batch = max(min(columns, MAXIMA_BYTES // max(4 * rows * choice.segments, 1)), 1)
    maxima = torch.empty(batch, choice.segments * rows, dtype=torch.float32, device=scores.device)
    for first in range(0, columns, batch):
        cells = maxima[: min(batch, columns - first)]
        if chunks and config.kernel == "hopper":
            _hopper(choice, left, right, document_index, cells, scores, first, rows, 0, rows)
        elif chunks:
            listing = (query_index, document_index)
            _portable(choice, left, right, listing, cells, first, chunks, rows, packed)
        _finish(cells, left, query_index, document_index, right, scores, first, choice.segments, packed)


def _summed(choice: Choice, left: Side, right: Side, query_index: Tensor | None,
            document_index: Tensor | None, scores: Tensor, rows: int) -> None:  # fmt: skip
    """The Hopper kernel adds up blocks of rows; where a query has several, they are added up after it."""
    device, columns, length = scores.device, scores.shape[-1], left.layout.length
    queries, documents = left.layout.items, right.layout.items
    sum_rows = min(length, BLOCK_ROWS) if queries > 1 else BLOCK_ROWS
    blocks = -(-length // sum_rows)
    if document_index is None and (blocks == 1 or (queries == 1 and rows <= choice.config.query_rows)):
        stride = 0 if queries == 1 else 1
        _hopper(choice, left, right, None, scores[0], scores, 0, rows, sum_rows, stride)
        return
    batch = max(min(columns, MAXIMA_BYTES // (8 * blocks * queries)), 1)
    # Strides of 0 and 1 would say that no sums are wanted.
    sums = torch.empty(batch, max(blocks * queries, 2), dtype=torch.float64, device=device)
    dependent = hopper_or_newer(device)
    constants = (8, 16, dependent)
    for first in range(0, columns, batch):
        cells = sums[: min(batch, columns - first)]
        _hopper(choice, left, right, document_index, cells, scores, first, rows, sum_rows, cells.shape[1])
        arguments = (
            cells, query_index, document_index, scores, len(cells), first,
            columns, blocks, cells.shape[1], queries, documents, flag(document_index),
        )  # fmt: skip
        grid = -(-len(cells) // constants[0]) * queries
        options = Options(4, launch_pdl=dependent)
        finishing.BLOCKS_KERNEL.launch(grid, constants, arguments, lambda: constants, options, device)


def _portable(choice: Choice, left: Side, right: Side, listing: tuple[Tensor | None, Tensor | None],
              cells: Tensor, first: int, chunks: int, rows: int, packed: bool) -> None:  # fmt: skip
    config, one, other = choice.config, left.layout, right.layout
    query_index, document_index = listing
    straight = aligned(left) and aligned(right)
    arguments = (
        left.tokens, left.starts, left.lengths, right.tokens, right.starts, right.lengths, right.mask,
        query_index, document_index, cells,
        *strides(one, straight), rows if packed else one.length, int(one.listed),
        *strides(other, straight), other.item_step, other.step, other.length, int(other.listed),
        one.items, other.items, flag(query_index), int(packed), first, choice.segments, chunks, rows,
    )  # fmt: skip

    def constants() -> tuple[Any, ...]:
        compute = _COMPUTE[compute_dtype(one, other)]
        return (
            other.dim, config.columns, config.query_rows, config.tokens, config.stages, other.masked,
            straight, compute, INTERPRETED,
        )  # fmt: skip

    key = (config.key, one.dtype, other.dtype, other.masked, straight)
    grid = len(cells) * choice.segments * chunks
    long_query.KERNEL.launch(grid, key, arguments, constants, config.options, other.device)


def _hopper(choice: Choice, left: Side, right: Side, document_index: Tensor | None, cells: Tensor,
            scores: Tensor, first: int, rows: int, sum_rows: int, stride: int) -> None:  # fmt: skip
    """Row maxima (sum_rows 0) or block sums of columns from `first` on, to cells [columns, ≥ stride]."""
    from maxsim.forward import hopper
    from maxsim.forward.copy_engine import box

    config, documents = choice.config, right.layout
    chunks = -(-rows // config.query_rows)
    arguments = (
        box(left, config.query_rows // 2, config.columns),
        box(right, config.tokens, config.columns),
        right.starts, right.lengths, right.mask, document_index, scores if sum_rows else cells,
        cells if stride > 1 and sum_rows else None, scores,
        rows, documents.item_step, documents.length, int(documents.listed), documents.items,
        flag(document_index), first, len(cells), choice.segments, chunks, stride, stride, scores.shape[-1],
    )  # fmt: skip

    def constants() -> tuple[Any, ...]:
        return (
            config.columns,
            config.query_rows,
            config.tokens,
            config.stages,
            documents.masked,
            sum_rows,
            hopper.REGISTERS,
        )

    # One program an SM, and no more of them than need be for the rounds that the longest has: where the
    # last round is a short one, its documents would share the memory's rate among fewer programs.
    items = len(cells) * choice.segments
    rounds = -(-items // max(min(processors(documents.device) // chunks, items), 1))
    groups = -(-items // rounds)
    key = (config.key, documents.dtype, documents.masked, sum_rows)
    hopper.KERNEL.launch(groups * chunks, key, arguments, constants, config.options, documents.device)


def _finish(cells: Tensor, left: Side, query_index: Tensor | None, document_index: Tensor | None, right: Side,
            scores: Tensor, first: int, segments: int, packed: bool) -> None:  # fmt: skip
    device, queries = scores.device, left.layout
    listed = query_index is not None
    arguments = (
        cells, left.starts, left.lengths, left.mask, query_index, document_index, scores,
        queries.length, int(queries.listed), int(queries.masked), queries.items, right.layout.items,
        len(cells), first, scores.shape[-1], int(listed), int(packed), segments, cells.shape[1] // segments,
    )  # fmt: skip
    dependent = not INTERPRETED and hopper_or_newer(device)
    tile = finishing.tile(queries.longest, segments)
    constants = (*tile[:4], dependent)
    grid = -(-len(cells) // tile.pairs) * (1 if listed else queries.items)
    options = Options(tile.num_warps, launch_pdl=dependent)
    finishing.KERNEL.launch(grid, constants, arguments, lambda: constants, options, device)
