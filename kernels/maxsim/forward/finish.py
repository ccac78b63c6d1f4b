"""Row maxima → scores: the last step of the kernels that cut a document or a query into parts."""

from typing import NamedTuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from maxsim.forward.launch import Kernel
from maxsim.forward.rowsum import BLOCK_ROWS, add_in_order, max_or_nan, sum_rows

__all__ = ["BLOCKS_KERNEL", "KERNEL", "Tile", "add_blocks", "finish", "tile"]

_RUNTIME = [
    "q_rows", "q_ragged", "q_masked", "queries", "documents", "columns", "first_column", "total_columns",
    "listed", "packed", "segments", "maxima_stride",
]  # fmt: skip
_INDICES = ["ROWMAX", "Q_START", "Q_LENGTH", "Q_MASK", "Q_INDEX", "X_INDEX", "OUT"]


@triton.jit
def _columns(
    Q_INDEX, X_INDEX, columns, first_column, queries, documents, listed, PAIRS: tl.constexpr,
):  # fmt: skip
    """This program's columns: which they are, the grid's query, whether each exists, whose query it is met
    by, and whether its indices are in range."""
    tiles = tl.cdiv(columns, PAIRS)
    column = tl.program_id(0) % tiles * PAIRS + tl.arange(0, PAIRS)
    query = (tl.program_id(0) // tiles).to(tl.int64)
    there = column < columns
    qi = tl.load(Q_INDEX + first_column + column, mask=there & (listed != 0), other=0)
    if listed == 0:
        qi += query
    di = tl.load(X_INDEX + first_column + column, mask=there & (listed != 0), other=0)
    inside = (qi >= 0) & (qi < queries) & (di >= 0) & (di < documents)
    return column, query, there, tl.where(inside, qi, 0), inside


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_INDICES)
def finish(
    ROWMAX, Q_START, Q_LENGTH, Q_MASK, Q_INDEX, X_INDEX, OUT,
    q_rows: tl.int64, q_ragged: tl.int32, q_masked: tl.int32, queries: tl.int64, documents: tl.int64,
    columns: tl.int32, first_column: tl.int64, total_columns: tl.int64, listed: tl.int32, packed: tl.int32,
    segments: tl.int32, maxima_stride: tl.int64,
    PAIRS: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ROWMAX [columns, segments, maxima_stride] → OUT [queries, total_columns] from `first_column` on.

    A column is a document, or in a work list a pair, whose query is Q_INDEX[column]. Where rows are
    packed, those of a query begin at its first row, else at 0. A tile is PAIRS columns and BLOCKS · ROWS
    query rows, of AT_ONCE segments. Grid (queries · ⌈columns / PAIRS⌉,). DEPENDENT: launched before the
    kernel that fills ROWMAX has ended, to have its own start behind it.
    """
    if DEPENDENT:
        gdc_wait()
    column, query, there, qi, inside = _columns(
        Q_INDEX, X_INDEX, columns, first_column, queries, documents, listed, PAIRS
    )
    q_first = tl.load(Q_START + qi, mask=there & (q_ragged != 0), other=0) + tl.where(
        q_ragged != 0, 0, qi * q_rows
    )
    q_count = tl.load(Q_LENGTH + qi, mask=there & (q_ragged != 0), other=0) + q_rows
    maxima = ROWMAX + column.to(tl.int64) * (segments * maxima_stride) + tl.where(packed != 0, q_first, 0)
    total = tl.zeros([PAIRS], tl.float64)
    row = tl.arange(0, BLOCKS * ROWS)
    for first in range(0, tl.max(q_count, 0).to(tl.int32), BLOCKS * ROWS):
        rows = first + row[None, :]
        live = there[:, None] & (rows < q_count[:, None])  # [PAIRS, BLOCKS · ROWS]
        best = tl.full([PAIRS, BLOCKS * ROWS], float("-inf"), tl.float32)
        for segment in range(0, segments, AT_ONCE):
            for ahead in tl.static_range(AT_ONCE):
                address = maxima[:, None] + (segment + ahead) * maxima_stride + rows
                part = tl.load(address, mask=live & (segment + ahead < segments), other=float("-inf"))
                best = max_or_nan(best, part)
        live &= tl.load(Q_MASK + q_first[:, None] + rows, mask=live & (q_masked != 0), other=1) != 0
        best = tl.where(live, best, 0.0)
        sums = sum_rows(tl.reshape(best, [PAIRS * BLOCKS * ROWS]), PAIRS * BLOCKS, ROWS)
        sums = tl.reshape(sums, [PAIRS, BLOCKS])
        total = add_in_order(total, sums)
    scores = tl.where(inside, total.to(tl.float32), float("nan"))
    tl.store(OUT + query * total_columns + first_column + column, scores, mask=there)


_BLOCK_SIZES = [
    "columns", "first_column", "total_columns", "blocks", "block_stride", "queries", "documents", "listed",
]  # fmt: skip
_BLOCK_INDICES = ["SUMS", "Q_INDEX", "X_INDEX", "OUT"]


@triton.jit(do_not_specialize=_BLOCK_SIZES, do_not_specialize_on_alignment=_BLOCK_INDICES)
def add_blocks(
    SUMS, Q_INDEX, X_INDEX, OUT,
    columns: tl.int32, first_column: tl.int64, total_columns: tl.int64, blocks: tl.int32,
    block_stride: tl.int64, queries: tl.int64, documents: tl.int64, listed: tl.int32,
    PAIRS: tl.constexpr, BLOCKS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """SUMS float64 [columns, block_stride], `blocks` of each query side by side → OUT as in `finish`."""
    if DEPENDENT:
        gdc_wait()
    column, query, there, _, inside = _columns(
        Q_INDEX, X_INDEX, columns, first_column, queries, documents, listed, PAIRS
    )
    total = tl.zeros([PAIRS], tl.float64)
    sums = SUMS + column.to(tl.int64)[:, None] * block_stride + query * blocks
    block = tl.arange(0, BLOCKS)[None, :]
    for first in range(0, blocks, BLOCKS):
        part = tl.load(sums + first + block, mask=there[:, None] & (first + block < blocks), other=0.0)
        total = add_in_order(total, part)
    scores = tl.where(inside, total.to(tl.float32), float("nan"))
    tl.store(OUT + query * total_columns + first_column + column, scores, mask=there)


class Tile(NamedTuple):
    """What one program of `finish` takes at a time."""

    pairs: int
    blocks: int
    rows: int
    at_once: int
    num_warps: int


def tile(longest: int | None, segments: int) -> Tile:
    """For queries of at most `longest` rows, or of any, and documents in so many segments."""
    if longest is None or longest > 4 * BLOCK_ROWS:
        return Tile(1, 16, BLOCK_ROWS, 4, 8) if segments <= 4 else Tile(1, 16, BLOCK_ROWS, 16, 8)
    if longest > BLOCK_ROWS:
        return Tile(1, 4, BLOCK_ROWS, 4, 4)
    return Tile(16, 1, BLOCK_ROWS, 1, 4) if segments == 1 else Tile(1, 1, BLOCK_ROWS, 16, 4)


KERNEL = Kernel(finish)
BLOCKS_KERNEL = Kernel(add_blocks)
