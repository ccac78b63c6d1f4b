"""What each portable kernel is told beside addresses, worked out from a choice and both sides' layouts.

A `Launch` from each function; its numbers stand in the order of the kernel's parameters. `prepare_hopper` has
the kernels for Hopper, `work` remembers what is made here.
"""

import torch
import triton.language as tl

from maxsim.forward import finish as finishing
from maxsim.forward import long_query as long
from maxsim.forward import short_query as short
from maxsim.forward.choose import Choice, compute_dtype, hopper_or_newer
from maxsim.forward.launch import INTERPRETED, Launch, Options
from maxsim.forward.operands import DOCUMENT, LISTED, QUERY, places
from maxsim.rows import Layout

__all__ = ["add_blocks", "finish", "long_query", "short_query"]

_COMPUTE = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}

# What each kernel takes, in the order of its parameters.
_SHORT = places("queries", *QUERY, "query_mask", "documents", *DOCUMENT, *LISTED, "scores", "scratch")
_LONG = places("queries", *QUERY, "documents", *DOCUMENT, *LISTED, "scratch")
_FINISH = places("scratch", *QUERY, "query_mask", *LISTED, "scores")
_ADD_BLOCKS = places("scratch", *LISTED, "scores")


def _table(side: Layout, straight: bool) -> tuple[int, int]:
    """Elements from row to row and from column to column; in units of 8 where both sides are aligned."""
    return (side.row_stride // 8 if straight else side.row_stride), side.column_stride


def short_query(choice: Choice, left: Layout, right: Layout, listed: bool, pairs: int) -> Launch:
    """Scores, or row maxima [pairs, segments, query_rows] to the scratch if there are several segments."""
    config, straight = choice.config, choice.straight
    tiles = (right.dim, config.columns, config.query_rows, config.tokens, config.stages)
    compute = _COMPUTE[compute_dtype(left, right)]
    return Launch(
        short.KERNEL,
        programs=pairs * choice.segments,
        key=(config.key, left.dtype, right.dtype, right.masked, straight, choice.chunked),
        tensors=_SHORT,
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
        long.KERNEL,
        programs=columns * choice.segments * chunks,
        key=(config.key, left.dtype, right.dtype, right.masked, straight),
        tensors=_LONG,
        numbers=(
            *_table(left, straight), rows if packed else left.length, int(left.listed),
            *_table(right, straight), right.item_step, right.step, right.length, int(right.listed),
            left.items, right.items, int(listed), int(packed), 0, choice.segments, chunks, rows,
        ),
        constants=(*tiles, right.masked, straight, compute, INTERPRETED),
        options=config.options,
        device=right.device,
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
