"""Row maxima → scores: the last step of the kernels that cut a document or a query into parts."""

import triton
import triton.language as tl

from maxsim.forward.launch import Kernel
from maxsim.forward.rowsum import BLOCK_ROWS, max_or_nan, sum_rows

__all__ = ["KERNEL", "PAIRS", "finish"]

# Pairs a program: their maxima are read side by side.
PAIRS = 16

_RUNTIME = ["q_rows", "q_ragged", "q_masked", "queries", "documents", "columns", "first_column", "total_columns", "listed",
            "packed", "segments", "maxima_stride"]  # fmt: skip
_INDICES = ["ROWMAX", "Q_START", "Q_LENGTH", "Q_MASK", "Q_INDEX", "X_INDEX", "OUT"]


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_INDICES)
def finish(
    ROWMAX, Q_START, Q_LENGTH, Q_MASK, Q_INDEX, X_INDEX, OUT,
    q_rows: "i64", q_ragged: "i32", q_masked: "i32", queries: "i64", documents: "i64",
    columns: "i64", first_column: "i64", total_columns: "i64", listed: "i32", packed: "i32",
    segments: "i32", maxima_stride: "i64", PAIRS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWMAX [columns, segments, maxima_stride] → OUT [queries, total_columns] from `first_column` on.

    A column is a document, or in a work list a pair, whose query is Q_INDEX[column]. Where rows are
    packed, those of a query begin at its first row, else at 0. Grid (⌈columns / PAIRS⌉, queries).
    """
    column = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    query = tl.program_id(1).to(tl.int64)
    there = column < columns
    qi = tl.load(Q_INDEX + first_column + column, mask=there & (listed != 0), other=0)
    if listed == 0:
        qi += query
    di = tl.load(X_INDEX + first_column + column, mask=there & (listed != 0), other=0)
    inside = (qi >= 0) & (qi < queries) & (di >= 0) & (di < documents)
    qi = tl.where(inside, qi, 0)
    q_first = tl.load(Q_START + qi, mask=there & (q_ragged != 0), other=0) + tl.where(q_ragged != 0, 0, qi * q_rows)
    q_count = tl.load(Q_LENGTH + qi, mask=there & (q_ragged != 0), other=0) + tl.where(q_ragged != 0, 0, q_rows)
    maxima = ROWMAX + column * segments * maxima_stride + tl.where(packed != 0, q_first, 0)
    total = tl.zeros([PAIRS], tl.float64)
    row = tl.arange(0, ROWS)
    for block in range(0, tl.max(q_count, 0), ROWS):
        rows = block + row[None, :]
        live = there[:, None] & (rows < q_count[:, None])  # [PAIRS, ROWS]
        best = tl.full([PAIRS, ROWS], float("-inf"), tl.float32)
        for segment in range(segments):
            part = tl.load(maxima[:, None] + segment * maxima_stride + rows, mask=live, other=float("-inf"))
            best = max_or_nan(best, part)
        live &= tl.load(Q_MASK + q_first[:, None] + rows, mask=live & (q_masked != 0), other=1) != 0
        best = tl.where(live, best, 0.0)
        total += sum_rows(tl.reshape(best, [PAIRS * ROWS]), PAIRS, ROWS)
    scores = tl.where(inside, total.to(tl.float32), float("nan"))
    tl.store(OUT + query * total_columns + first_column + column, scores, mask=there)


KERNEL = Kernel(finish)
