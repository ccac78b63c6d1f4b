"""Row maxima for many query rows, where arithmetic is what takes the time: the portable kernel.

One program takes a chunk of BQ query rows, on the M side of the tensor core, through one document or a
segment of it. Rows may belong to several queries: a document tile is then read once for all of them.
`finish` adds the maxima up. Chunks of one document are neighbours in the grid, so that they meet in L2.
"""

import triton
import triton.language as tl

from maxsim.forward.launch import Kernel
from maxsim.forward.products import multiply
from maxsim.forward.rowsum import largest, max_or_nan

__all__ = ["KERNEL", "long_query"]

_RUNTIME = [
    "q_stride", "q_col", "q_rows", "q_ragged",
    "x_stride", "x_col", "x_item", "x_step", "x_rows", "x_ragged",
    "queries", "documents", "listed", "packed", "first_column", "segments", "chunks", "maxima_stride",
]  # fmt: skip
_INDICES = ["Q_START", "Q_LENGTH", "X_START", "X_LENGTH", "X_MASK", "Q_INDEX", "X_INDEX", "ROWMAX"]


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_INDICES)
def long_query(
    Q, Q_START, Q_LENGTH, X, X_START, X_LENGTH, X_MASK, Q_INDEX, X_INDEX, ROWMAX,
    q_stride: tl.int64, q_col: tl.int64, q_rows: tl.int64, q_ragged: tl.int32,
    x_stride: tl.int64, x_col: tl.int64, x_item: tl.int64, x_step: tl.int64, x_rows: tl.int64,
    x_ragged: tl.int32,
    queries: tl.int32, documents: tl.int32, listed: tl.int32, packed: tl.int32, first_column: tl.int32,
    segments: tl.int32, chunks: tl.int32, maxima_stride: tl.int64,
    D: tl.constexpr, BK: tl.constexpr, BQ: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
    MASKED: tl.constexpr, ALIGNED: tl.constexpr, COMPUTE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Operands as `rows.Side` describes them → ROWMAX [columns, segments, maxima_stride].

    A column is a document, or the one a work list names. Packed: it is met by q_rows rows from the top
    of the query table; else by the rows of the query that the work list names.
    Grid (columns · segments · chunks,).
    """
    if ALIGNED:
        # Strides come in units of 8 elements, so that the compiler knows that 16 bytes can be read at a time.
        q_stride, x_stride = q_stride * 8, x_stride * 8
        q_col, x_col = 1, 1
    program = tl.program_id(0)
    chunk, piece = program % chunks, program // chunks
    column, segment = first_column + piece // segments, piece % segments
    qi = tl.load(Q_INDEX + column, mask=listed != 0, other=0)
    di = tl.load(X_INDEX + column, mask=listed != 0, other=0)
    if listed == 0:
        di = column.to(tl.int64)
    inside = (qi >= 0) & (qi < queries) & (di >= 0) & (di < documents)
    qi, di = tl.where(inside, qi, 0), tl.where(inside, di, 0)
    x_first = tl.load(X_START + di, mask=x_ragged != 0, other=0) + di * x_item
    x_count = (tl.load(X_LENGTH + di, mask=x_ragged != 0, other=0) + x_rows).to(tl.int32)
    x_mask = X_MASK + tl.where(x_ragged != 0, x_first, di * x_rows)
    alone = packed == 0
    q_first = tl.load(Q_START + qi, mask=alone & (q_ragged != 0), other=0) + tl.where(alone, qi * q_rows, 0)
    q_count = tl.load(Q_LENGTH + qi, mask=alone & (q_ragged != 0), other=0) + q_rows
    span = tl.cdiv(tl.cdiv(x_count, segments), BD) * BD
    low = tl.minimum(segment * span, x_count)
    x_mask += low

    rows = chunk * BQ + tl.arange(0, BQ)
    there = rows < q_count
    query = Q + (q_first + rows) * q_stride  # [BQ]
    step = x_step * x_stride
    base, count = X + x_first * x_stride + low * step, tl.minimum(span, x_count - low)
    k, t = tl.arange(0, BK), tl.arange(0, BD)
    lines = t.to(tl.int64)[None, :] * step + k[:, None] * x_col  # [BK, BD]
    best = tl.full([BQ], float("-inf"), tl.float32)
    if BK >= D:
        q = tl.load(query[:, None] + k[None, :] * q_col, mask=there[:, None] & (k < D)[None, :], other=0.0)
        q = q.to(COMPUTE)  # [BQ, BK]
        whole = 0 if MASKED else count - count % BD
        for first in tl.range(0, whole, BD, num_stages=STAGES):
            x = tl.load(base + first * step + lines, mask=(k < D)[:, None], other=0.0)
            products = multiply(q, x.to(COMPUTE), True, EXACT)  # [BQ, BD]
            best = max_or_nan(best, largest(products, 1))
        # The last tile, or all of them under a mask.
        for first in tl.range(whole, count, BD, num_stages=STAGES):
            live = first + t < count
            x = tl.load(base + first * step + lines, mask=live[None, :] & (k < D)[:, None], other=0.0)
            if MASKED:
                live &= tl.load(x_mask + first + t, mask=live, other=0) != 0
            products = multiply(q, x.to(COMPUTE), True, EXACT)
            products = tl.where(live[None, :], products, float("-inf"))
            best = max_or_nan(best, largest(products, 1))
    else:
        K_TILES: tl.constexpr = (D + BK - 1) // BK
        products = tl.zeros([BQ, BD], tl.float32)
        for i in tl.range(0, tl.cdiv(count, BD) * K_TILES, num_stages=STAGES):
            first = (i // K_TILES) * BD
            offset = (i % K_TILES) * BK
            live = first + t < count
            wide = offset + k < D
            x = tl.load(
                base + first * step + offset * x_col + lines, mask=live[None, :] & wide[:, None], other=0.0
            )
            q = tl.load(
                query[:, None] + (offset + k)[None, :] * q_col, mask=there[:, None] & wide[None, :], other=0.0
            )
            # Added outside the tensor core, as in short_query, and by a multiply-add for the same reason.
            part = multiply(q.to(COMPUTE), x.to(COMPUTE), True, EXACT)
            products = tl.fma(part, 1.0, products)
            if offset + BK >= D:
                if MASKED:
                    live &= tl.load(x_mask + first + t, mask=live, other=0) != 0
                products = tl.where(live[None, :], products, float("-inf"))
                best = max_or_nan(best, largest(products, 1))
                products = tl.zeros([BQ, BD], tl.float32)
    tl.store(ROWMAX + piece.to(tl.int64) * maxima_stride + rows, best, mask=there)


KERNEL = Kernel(long_query)
