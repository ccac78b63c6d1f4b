"""What each kernel is told beside addresses, worked out from a choice and both sides' layouts: a `Launch`.

Numbers stand in the order of the kernel's parameters. `work` remembers what is made here.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import triton.language as tl

from maxsim.forward import finish as finishing
from maxsim.forward import long_query as portable_long
from maxsim.forward import short_query as portable_short
from maxsim.forward.choose import Choice, compute_dtype, hopper_or_newer, processors
from maxsim.forward.launch import INTERPRETED, Launch, Options
from maxsim.forward.operands import places
from maxsim.rows import Layout

__all__ = ["add_blocks", "finish", "hopper", "long_query", "short_hopper", "short_query"]

LONGEST = (1 << 31) - 1

_COMPUTE = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}

_QUERY, _DOCUMENT = (
    ("query_starts", "query_lengths"),
    ("document_starts", "document_lengths", "document_mask"),
)
_LISTED = ("query_index", "document_index")
# What each kernel takes, in the order of its parameters.
_SHORT = places(*_QUERY, "query_mask", *_DOCUMENT, *_LISTED, "scores", "scratch")
_PORTABLE_SHORT = places(
    "queries", *_QUERY, "query_mask", "documents", *_DOCUMENT, *_LISTED, "scores", "scratch"
)
_PORTABLE_LONG = places("queries", *_QUERY, "documents", *_DOCUMENT, *_LISTED, "scratch")
_MAXIMA = places(*_DOCUMENT, "document_index", "scratch", "nothing", "scores")
_SUMS = places(*_DOCUMENT, "document_index", "scores", "scratch", "scores")
_SCORES = places(*_DOCUMENT, "document_index", "scores", "nothing", "scores")
_FINISH = places("scratch", *_QUERY, "query_mask", *_LISTED, "scores")
_ADD_BLOCKS = places("scratch", *_LISTED, "scores")
_BOXES = places("queries", "documents")


@cache
def _for_hopper() -> Any:
    """What is in Gluon: imported where there is a GPU for it."""
    from maxsim.forward import copy_engine, hopper, short_hopper

    return SimpleNamespace(
        short_query=short_hopper.KERNEL,
        long_query=hopper.KERNEL,
        registers=hopper.REGISTERS,
        frame=copy_engine.frame,
    )


def _table(side: Layout, straight: bool) -> tuple[int, int]:
    """Elements from row to row and from column to column; in units of 8 where both sides are aligned."""
    return (side.row_stride // 8 if straight else side.row_stride), side.column_stride


def short_query(choice: Choice, left: Layout, right: Layout, listed: bool, pairs: int) -> Launch:
    """Scores, or row maxima [pairs, segments, query_rows] to the scratch if there are several segments."""
    config, straight = choice.config, choice.straight
    tiles = (right.dim, config.columns, config.query_rows, config.tokens, config.stages)
    compute = _COMPUTE[compute_dtype(left, right)]
    return Launch(
        portable_short.KERNEL,
        programs=pairs * choice.segments,
        key=(config.key, left.dtype, right.dtype, right.masked, straight, choice.chunked),
        tensors=_PORTABLE_SHORT,
        numbers=(
            *_table(left, straight), left.item_step, left.step, left.length, int(left.listed),
            int(left.masked),
            *_table(right, straight), right.item_step, right.step, right.length, int(right.listed),
            left.items, right.items, int(listed), choice.segments, config.query_rows,
        ),
        constants=(*tiles, right.masked, straight, choice.chunked, compute, INTERPRETED),
        options=config.options,
        device=right.device,
    )  # fmt: skip


def short_hopper(choice: Choice, left: Layout, right: Layout, listed: bool, pairs: int) -> Launch:
    """As `short_query`."""
    config, cells = choice.config, pairs * choice.segments
    span = LONGEST  # tokens of a segment, whole tiles: no limit where a document is one
    if choice.segments > 1:
        span = -(-(right.longest or 1) // (choice.segments * config.tokens)) * config.tokens
    tile = (config.columns, config.query_rows, config.tokens)
    return Launch(
        _for_hopper().short_query,
        programs=-(-cells // config.pairs),
        key=(config.key, left.dtype, right.masked),
        tensors=_SHORT,
        numbers=(
            left.item_step, left.length, int(left.listed), int(left.masked),
            right.item_step, right.length, int(right.listed),
            left.items, right.items, int(listed), cells, choice.segments, span, config.query_rows,
        ),
        constants=(*tile, config.stages, config.pairs, config.options.num_warps, right.masked),
        options=config.options,
        device=right.device,
        boxes=_boxes(left, right, config.query_rows, config.tokens, config.columns),
    )  # fmt: skip


def long_query(
    choice: Choice, left: Layout, right: Layout, listed: bool, columns: int, rows: int, packed: bool
) -> Launch:  # fmt: skip
    """Row maxima [columns, segments, rows] to the scratch. `packed`: a column is met by all rows of the
    query table; else by those of the query that the work list names."""
    config, straight = choice.config, choice.straight
    chunks = -(-rows // config.query_rows)
    tiles = (right.dim, config.columns, config.query_rows, config.tokens, config.stages)
    compute = _COMPUTE[compute_dtype(left, right)]
    return Launch(
        portable_long.KERNEL,
        programs=columns * choice.segments * chunks,
        key=(config.key, left.dtype, right.dtype, right.masked, straight),
        tensors=_PORTABLE_LONG,
        numbers=(
            *_table(left, straight), rows if packed else left.length, int(left.listed),
            *_table(right, straight), right.item_step, right.step, right.length, int(right.listed),
            left.items, right.items, int(listed), int(packed), 0, choice.segments, chunks, rows,
        ),
        constants=(*tiles, right.masked, straight, compute, INTERPRETED),
        options=config.options,
        device=right.device,
    )  # fmt: skip


def hopper(
    choice: Choice, left: Layout, right: Layout, listed: bool, columns: int, total_columns: int, rows: int,
    sum_rows: int, stride: int,
) -> Launch:  # fmt: skip
    """Of all `rows` of the query table, to the scratch [columns, segments, stride]: row maxima if `sum_rows`
    is 0, else sums of so many. A stride of 0 or 1 with sums: to the scores, as the kernel says."""
    config = choice.config
    chunks = -(-rows // config.query_rows)
    # One program an SM, and no more of them than need be for the rounds that the longest has: where the
    # last round is a short one, its documents would share the memory's rate among fewer programs.
    items = columns * choice.segments
    rounds = -(-items // max(min(processors(right.device) // chunks, items), 1))
    groups = -(-items // rounds)
    tensors = _MAXIMA
    if sum_rows:
        tensors = _SUMS if stride > 1 else _SCORES
    tile = (config.columns, config.query_rows, config.tokens)
    return Launch(
        _for_hopper().long_query,
        programs=groups * chunks,
        key=(config.key, right.dtype, right.masked, sum_rows),
        tensors=tensors,
        numbers=(
            rows, right.item_step, right.length, int(right.listed), right.items, int(listed), 0, columns,
            choice.segments, chunks, stride, stride, total_columns,
        ),
        constants=(*tile, config.stages, right.masked, sum_rows, _for_hopper().registers),
        options=config.options,
        device=right.device,
        boxes=_boxes(left, right, config.query_rows // 2, config.tokens, config.columns),
    )  # fmt: skip


def finish(
    left: Layout, right: Layout, listed: bool, columns: int, total_columns: int, segments: int, rows: int,
    packed: bool,
) -> Launch:  # fmt: skip
    """Row maxima [columns, segments, rows] in the scratch → scores; `packed` as in `long_query`."""
    dependent = not INTERPRETED and hopper_or_newer(right.device)
    tile = finishing.tile(left.longest, segments)
    constants = (*tile[:4], dependent)
    return Launch(
        finishing.KERNEL,
        programs=-(-columns // tile.pairs) * (1 if listed else left.items),
        key=constants,
        tensors=_FINISH,
        numbers=(
            left.length, int(left.listed), int(left.masked), left.items, right.items,
            columns, 0, total_columns, int(listed), int(packed), segments, rows,
        ),
        constants=constants,
        options=Options(tile.num_warps, launch_pdl=dependent),
        device=right.device,
    )  # fmt: skip


def add_blocks(
    left: Layout, right: Layout, listed: bool, columns: int, total_columns: int, blocks: int, stride: int
) -> Launch:
    """Sums of rows [columns, stride] in the scratch, `blocks` of each query side by side → scores."""
    dependent = hopper_or_newer(right.device)
    constants = (8, 16, dependent)
    return Launch(
        finishing.BLOCKS_KERNEL,
        programs=-(-columns // constants[0]) * left.items,
        key=constants,
        tensors=_ADD_BLOCKS,
        numbers=(columns, 0, total_columns, blocks, stride, left.items, right.items, int(listed)),
        constants=constants,
        options=Options(4, launch_pdl=dependent),
        device=right.device,
    )


def _boxes(left: Layout, right: Layout, query_rows: int, tokens: int, columns: int) -> Any:
    """Which operands the copy engine reads, and in boxes of how many rows."""
    frame, (queries, documents) = _for_hopper().frame, _BOXES
    return (queries, frame(left, query_rows, columns)), (documents, frame(right, tokens, columns))
