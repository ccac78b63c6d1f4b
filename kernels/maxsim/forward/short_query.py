"""MaxSim for queries of few rows, where reading the documents is what takes the time.

One program scores one (query, document) pair, or one segment of its document. Document tokens lie on
the M side of the tensor core, which takes 64 rows at a time; a query of 32 rows there would leave half
of it idle. The running maximum stays elementwise, [BD, BQ], and is reduced across tokens once, at the
end. A query of more than BQ rows is taken in chunks, each of which reads the document again.
"""

import triton
import triton.language as tl

from maxsim.forward.launch import Kernel
from maxsim.forward.products import multiply
from maxsim.forward.rowsum import largest, max_or_nan, sum_rows

__all__ = ["KERNEL", "short_query"]

_RUNTIME = [
    "q_stride", "q_col", "q_item", "q_step", "q_rows", "q_ragged", "q_masked",
    "x_stride", "x_col", "x_item", "x_step", "x_rows", "x_ragged",
    "queries", "documents", "listed", "segments", "maxima_stride",
]  # fmt: skip
_INDICES = [
    "Q_START",
    "Q_LENGTH",
    "Q_MASK",
    "X_START",
    "X_LENGTH",
    "X_MASK",
    "Q_INDEX",
    "X_INDEX",
    "OUT",
    "ROWMAX",
]


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_INDICES)
def short_query(
    Q, Q_START, Q_LENGTH, Q_MASK, X, X_START, X_LENGTH, X_MASK, Q_INDEX, X_INDEX, OUT, ROWMAX,
    q_stride: tl.int64, q_col: tl.int64, q_item: tl.int64, q_step: tl.int64, q_rows: tl.int64,
    q_ragged: tl.int32, q_masked: tl.int32,
    x_stride: tl.int64, x_col: tl.int64, x_item: tl.int64, x_step: tl.int64, x_rows: tl.int64,
    x_ragged: tl.int32,
    queries: tl.int32, documents: tl.int32, listed: tl.int32, segments: tl.int32, maxima_stride: tl.int64,
    D: tl.constexpr, BK: tl.constexpr, BQ: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
    MASKED: tl.constexpr, ALIGNED: tl.constexpr, CHUNKED: tl.constexpr,
    COMPUTE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Operands as `rows.Side` describes them. Grid (pairs · segments,).

    With one segment the scores go to OUT [pairs], else row maxima to ROWMAX [pairs, segments, maxima_stride].
    """
    if ALIGNED:
        # Strides come in units of 8 elements, so that the compiler knows that 16 bytes can be read at a time.
        q_stride, x_stride = q_stride * 8, x_stride * 8
        q_col, x_col = 1, 1
    cell = tl.program_id(0)
    # Divisions in 32 bits: a 64-bit one takes a hundred instructions.
    pair, segment = cell // segments, cell % segments
    # Which query and document. A load that is switched off costs no memory access.
    qi = tl.load(Q_INDEX + pair, mask=listed != 0, other=0)
    di = tl.load(X_INDEX + pair, mask=listed != 0, other=0)
    if listed == 0:
        qi, di = (pair // documents).to(tl.int64), (pair % documents).to(tl.int64)
    inside = (qi >= 0) & (qi < queries) & (di >= 0) & (di < documents)
    qi, di = tl.where(inside, qi, 0), tl.where(inside, di, 0)
    x_first = tl.load(X_START + di, mask=x_ragged != 0, other=0) + di * x_item
    x_count = (tl.load(X_LENGTH + di, mask=x_ragged != 0, other=0) + x_rows).to(tl.int32)
    q_first = tl.load(Q_START + qi, mask=q_ragged != 0, other=0) + qi * q_item
    q_count = (tl.load(Q_LENGTH + qi, mask=q_ragged != 0, other=0) + q_rows).to(tl.int32)
    # Masks are numbered like the tokens of a dense operand, or like the rows of a packed one.
    x_mask = X_MASK + tl.where(x_ragged != 0, x_first, di * x_rows)
    q_mask = Q_MASK + tl.where(q_ragged != 0, q_first, qi * q_rows)
    if MASKED:
        x_count = _up_to_last(x_mask, x_count, BD)
    # A segment is a whole number of tiles.
    span = tl.cdiv(tl.cdiv(x_count, segments), BD) * BD
    low = tl.minimum(segment * span, x_count)
    high = tl.minimum(low + span, x_count)
    step = x_step * x_stride
    base = X + x_first * x_stride + low * step
    total = tl.zeros([1], tl.float64)
    chunks = 1
    if CHUNKED:
        chunks = tl.maximum(tl.cdiv(q_count, BQ), 1)
    row = tl.arange(0, BQ)
    for chunk in range(chunks):
        rows = chunk * BQ + row
        there = rows < q_count
        query = Q + (q_first + rows.to(tl.int64) * q_step) * q_stride  # [BQ]
        best = _maxima(
            query, there, q_col, base, step, x_col, x_mask + low, high - low,
            D, BK, BQ, BD, STAGES, MASKED, COMPUTE, EXACT,
        )  # fmt: skip
        if segments == 1:
            live = there & (tl.load(q_mask + rows, mask=there & (q_masked != 0), other=1) != 0)
            total += sum_rows(tl.where(live, best, 0.0), 1, BQ)
        else:
            tl.store(ROWMAX + cell.to(tl.int64) * maxima_stride + rows, best)
    if segments == 1:
        score = tl.where(inside, total.to(tl.float32), float("nan"))
        tl.store(OUT + pair + tl.arange(0, 1), score)


@triton.jit
def _up_to_last(x_mask, count, BD: tl.constexpr):
    """How many of `count` tokens there are up to the last one that is active: padding is not read."""
    token = tl.arange(0, 8 * BD)
    last = 0
    for first in range(0, count, 8 * BD):
        active = tl.load(x_mask + first + token, mask=first + token < count, other=0)
        last = tl.maximum(last, tl.max(tl.where(active != 0, first + token + 1, 0), 0))
    return last


@triton.jit
def _maxima(
    query, there, q_col, base, step, x_col, x_mask, count,
    D: tl.constexpr, BK: tl.constexpr, BQ: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
    MASKED: tl.constexpr, COMPUTE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The largest inner product of each query row with `count` tokens from `base` on, float32 [BQ]."""
    k, t = tl.arange(0, BK), tl.arange(0, BD)
    lines = t.to(tl.int64)[:, None] * step + k[None, :] * x_col  # [BD, BK]
    best = tl.full([BD, BQ], float("-inf"), tl.float32)
    if BK >= D:
        q = tl.load(query[None, :] + k[:, None] * q_col, mask=there[None, :] & (k < D)[:, None], other=0.0)
        q = q.to(COMPUTE)  # [BK, BQ]
        for first in tl.range(0, count, BD, num_stages=STAGES):
            live = first + t < count
            x = tl.load(base + first * step + lines, mask=live[:, None] & (k < D)[None, :], other=0.0)
            if MASKED:
                live &= tl.load(x_mask + first + t, mask=live, other=0) != 0
            products = multiply(x.to(COMPUTE), q, False, EXACT)  # [BD, BQ]
            best = max_or_nan(best, tl.where(live[:, None], products, float("-inf")))
    else:
        # Wide rows: tokens × columns in one flat loop, so that loads run ahead across tokens too.
        K_TILES: tl.constexpr = (D + BK - 1) // BK
        products = tl.zeros([BD, BQ], tl.float32)
        for i in tl.range(0, tl.cdiv(count, BD) * K_TILES, num_stages=STAGES):
            first = (i // K_TILES) * BD
            column = (i % K_TILES) * BK
            live = first + t < count
            wide = column + k < D
            x = tl.load(
                base + first * step + column * x_col + lines, mask=live[:, None] & wide[None, :], other=0.0
            )
            q = tl.load(
                query[None, :] + (column + k)[:, None] * q_col, mask=there[None, :] & wide[:, None], other=0.0
            )
            # Added outside the tensor core, which drops what lies below its accumulator's last bit: over a
            # thousand columns that would bias a product by millionths. (The compiler would fold an addition
            # into the product again; it leaves a multiply-add alone.)
            part = multiply(x.to(COMPUTE), q.to(COMPUTE), False, EXACT)
            products = tl.fma(part, 1.0, products)
            if column + BK >= D:
                if MASKED:
                    live &= tl.load(x_mask + first + t, mask=live, other=0) != 0
                best = max_or_nan(best, tl.where(live[:, None], products, float("-inf")))
                products = tl.zeros([BD, BQ], tl.float32)
    return largest(best, 0)


KERNEL = Kernel(short_query)
