"""MaxSim for queries of few rows on Hopper: the copy engine reads the documents, and is asked first.

As `short_query`, with which it shares bits, but a program's first document tiles are under way before
anything waits for the query, a tile costs one thread two instructions to ask for, and a slot of the ring
is asked for again as soon as its tile lies in registers. Where there are many pairs a program takes two,
one after the other: it reads the query once, and the second document while it is busy with the first.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from maxsim.forward.copy_engine import bring, max_or_nan, sum_rows
from maxsim.forward.launch import Kernel

__all__ = ["KERNEL", "short_query_hopper"]

_RUNTIME = [
    "q_item", "q_rows", "q_ragged", "q_masked", "x_item", "x_rows", "x_ragged",
    "queries", "documents", "listed", "cells", "segments", "span", "maxima_stride",
]  # fmt: skip
_TENSORS = [
    "Q_START", "Q_LENGTH", "Q_MASK", "X_START", "X_LENGTH", "X_MASK", "Q_INDEX", "X_INDEX", "OUT", "ROWMAX",
]  # fmt: skip


@gluon.jit
def _up_to_last(X_MASK, starts, counts, WARPS: gl.constexpr):
    """How many tokens two documents have up to their last active ones: padding is not read."""
    TOKENS: gl.constexpr = 512 * WARPS
    lanes: gl.constexpr = gl.BlockedLayout([16], [32], [WARPS], [0])
    token = gl.arange(0, TOKENS, lanes)
    last, next_last = 0, 0
    for first in range(0, gl.maximum(counts[0], counts[1]), TOKENS):
        at = first + token
        active = gl.load(X_MASK + starts[0] + at, mask=at < counts[0], other=False)
        next_active = gl.load(X_MASK + starts[1] + at, mask=at < counts[1], other=False)
        last = gl.maximum(last, gl.max(gl.where(active, at + 1, 0), axis=0))
        next_last = gl.maximum(next_last, gl.max(gl.where(next_active, at + 1, 0), axis=0))
    return last, next_last


@gluon.jit
def _pair(cell, segments):
    """A cell's pair, and which segment of its document."""
    pair, segment = cell, 0
    if segments > 1:
        pair, segment = cell // segments, cell % segments
    return pair, segment


@gluon.jit
def _inside(qi, di, queries, documents):
    """Indices, 0 for both if one is out of range, and whether none is."""
    inside = (qi >= 0) & (qi < queries) & (di >= 0) & (di < documents)
    return gl.where(inside, qi, 0).to(gl.int32), gl.where(inside, di, 0).to(gl.int32), inside


@gluon.jit
def _look_up(cell, also, where, TWO: gl.constexpr):
    """Of two cells each: the query, whether its indices are in range, and of its document the first row, the
    first mask and the number of tokens. Both are asked for before either is waited for; if not TWO, one is.
    """
    Q_INDEX, X_INDEX, X_START, X_LENGTH, x_item, x_rows, x_ragged, queries, documents, listed, parts = where
    pair, _ = _pair(cell, parts)
    next_pair, _ = _pair(also, parts)
    qi, di, inside = pair * 0, pair, pair >= 0
    qj, dj, also_inside = qi, next_pair, inside
    if listed != 0:
        q, x = gl.load(Q_INDEX + pair), gl.load(X_INDEX + pair)
        next_q, next_x = q, x
        if TWO:
            next_q, next_x = gl.load(Q_INDEX + next_pair), gl.load(X_INDEX + next_pair)
        qi, di, inside = _inside(q, x, queries, documents)
        qj, dj, also_inside = _inside(next_q, next_x, queries, documents)
    # Rows are numbered in 32 bits: the copy engine knows no others.
    row, next_row, count, next_count = di * x_item, dj * x_item, x_rows, x_rows
    mask_start, next_mask = di * x_rows, dj * x_rows
    if x_ragged != 0:
        start, length = gl.load(X_START + di), gl.load(X_LENGTH + di)
        next_start, next_length = start, length
        if TWO:
            next_start, next_length = gl.load(X_START + dj), gl.load(X_LENGTH + dj)
        row, count = start.to(gl.int32), length.to(gl.int32)
        next_row, next_count = next_start.to(gl.int32), next_length.to(gl.int32)
        mask_start, next_mask = row, next_row
    return (qi, inside, row, mask_start, count), (qj, also_inside, next_row, next_mask, next_count)


@gluon.jit
def _query(qi, left):
    """First row and number of rows of a query, and where its mask begins."""
    Q_START, Q_LENGTH, q_item, q_rows, q_ragged = left
    first, count = qi * q_item, q_rows
    mask_start = qi * q_rows
    if q_ragged != 0:
        first = gl.load(Q_START + qi).to(gl.int32)
        count = gl.load(Q_LENGTH + qi).to(gl.int32)
        mask_start = first
    return first, count, mask_start


@gluon.jit
def _across_warps(best, maxima, WARPS: gl.constexpr):
    """The highest of each column of best [BD, BQ] → [BQ], every warp the same. A warp's own are met in its
    registers, the warps' in `maxima` [WARPS, BQ]."""
    BD: gl.constexpr = best.shape[0]
    BQ: gl.constexpr = best.shape[1]
    rows = best.reshape([BD // (16 * WARPS), WARPS, 16, BQ])
    maxima.store(gl.reduce(gl.reduce(rows, 0, max_or_nan), 1, max_or_nan))
    # Four rows of the query a lane: so many fewer steps of the sum go from lane to lane.
    lanes: gl.constexpr = gl.BlockedLayout([WARPS, 4], [1, 32], [1, WARPS], [1, 0])
    return gl.reduce(maxima.load(lanes), 0, max_or_nan)


@gluon.jit
def _after(wanted, begin, row, count, next_row, next_count, BD: gl.constexpr):
    """What to ask for after the tile that begins at token `begin` of cell `wanted`: its next one, or the next
    cell's first."""
    begin += BD
    if begin >= count:
        wanted, begin, row, count = wanted + 1, 0, next_row, next_count
    return wanted, begin, row, count


@gluon.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_TENSORS)
def short_query_hopper(
    q_desc, x_desc, Q_START, Q_LENGTH, Q_MASK, X_START, X_LENGTH, X_MASK, Q_INDEX, X_INDEX, OUT, ROWMAX,
    q_item: tl.int32, q_rows: tl.int32, q_ragged: tl.int32, q_masked: tl.int32,
    x_item: tl.int32, x_rows: tl.int32, x_ragged: tl.int32,
    queries: tl.int32, documents: tl.int32, listed: tl.int32, cells: tl.int32, segments: tl.int32,
    span: tl.int32, maxima_stride: tl.int32,
    D: gl.constexpr, BQ: gl.constexpr, BD: gl.constexpr, STAGES: gl.constexpr, PAIRS: gl.constexpr,
    WARPS: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """q_desc, x_desc: boxes [BQ, D] and [BD, D] of packed rows. Grid (⌈cells / PAIRS⌉,).

    A cell is a pair, or a segment of `span` tokens of its document, whole tiles. With one segment the scores
    go to OUT [cells], else row maxima to ROWMAX [cells, maxima_stride].
    """
    where = (
        Q_INDEX, X_INDEX, X_START, X_LENGTH, x_item, x_rows, x_ragged, queries, documents, listed, segments,
    )  # fmt: skip
    left = (Q_START, Q_LENGTH, q_item, q_rows, q_ragged)
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, 8]
    )
    tokens_in: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    query_in: gl.constexpr = gl.DotOperandLayout(1, mma, 2)
    ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BD, D], x_desc.layout)
    q_tile = gl.allocate_shared_memory(q_desc.dtype, [BQ, D], q_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    maxima = gl.allocate_shared_memory(gl.float32, [WARPS, BQ], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    mbarrier.init(q_ready, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
    # The copy engine must see the barriers as initialized.
    fence_async_shared()
    first = gl.program_id(0) * PAIRS
    last = gl.minimum(first + PAIRS, cells)
    also = gl.minimum(first + 1, last - 1)
    mine, others = _look_up(first, also, where, PAIRS == 2)
    qi, inside, x_row, x_mask, count = mine
    qj, also_inside, next_row, next_mask, next_count = others
    low, next_low = _pair(first, segments)[1] * span, _pair(also, segments)[1] * span
    if not MASKED:
        low, next_low = gl.minimum(low, count), gl.minimum(next_low, next_count)
    # Where there is a mask, too: a document's first tile is hardly ever all padding.
    bring(x_desc, x_row + low, full.index(0), ring.index(0))
    if MASKED:
        count, next_count = _up_to_last(X_MASK, (x_mask, next_mask), (count, next_count), WARPS)
    x_row, x_mask, count = x_row + low, x_mask + low, gl.minimum(count - low, span)
    next_row, next_mask = next_row + next_low, next_mask + next_low
    next_count = gl.minimum(next_count - next_low, span)
    # The next tile to ask for: tokens from `ask` on of cell `wanted`, whose document has `ask_count` from
    # row `ask_row` on. Rows past the end of a document are its neighbour's, and past the store's end zeros:
    # they are copied, and masked before the maximum. An empty document is a tile of such.
    wanted, ask, ask_row, ask_count = _after(first, 0, x_row, count, next_row, next_count, BD)
    for slot in range(1, STAGES):
        if wanted < last:
            bring(x_desc, ask_row + ask, full.index(slot), ring.index(slot))
            wanted, ask, ask_row, ask_count = _after(
                wanted, ask, ask_row, ask_count, next_row, next_count, BD
            )
    q_first, q_count, q_mask = _query(qi, left)
    bring(q_desc, q_first, q_ready, q_tile)
    mbarrier.wait(q_ready, 0)
    query = q_tile.permute((1, 0)).load(query_in)  # [D, BQ]
    token = gl.arange(0, BD, gl.SliceLayout(1, mma))
    slot, phase = 0, 0
    for cell in range(first, last):
        best = gl.full([BD, BQ], float("-inf"), gl.float32, mma)
        for tile in range(0, gl.maximum(count, 1), BD):
            live = token < count - tile
            if MASKED:
                # Asked for here, used after the products.
                live = gl.load(X_MASK + x_mask + tile + token, mask=live, other=False)
            mbarrier.wait(full.index(slot), phase)
            tokens = ring.index(slot).load(tokens_in)  # [BD, D]
            if wanted < last:
                # Every warp has its part of the tile: the slot may be filled again.
                gl.thread_barrier()
                bring(x_desc, ask_row + ask, full.index(slot), ring.index(slot))
                wanted, ask, ask_row, ask_count = _after(
                    wanted, ask, ask_row, ask_count, next_row, next_count, BD
                )
            products = mma_v2(tokens, query, gl.zeros([BD, BQ], gl.float32, mma))
            if MASKED or tile + BD > count:
                products = gl.where(live[:, None], products, float("-inf"))
            best = max_or_nan(best, products)
            slot += 1
            if slot == STAGES:
                slot, phase = 0, phase ^ 1
        highest = _across_warps(best, maxima, WARPS)
        row = gl.arange(0, BQ, highest.type.layout)
        if segments == 1:
            there = row < q_count
            there &= gl.load(Q_MASK + q_mask + row, mask=there & (q_masked != 0), other=1) != 0
            total = sum_rows(gl.where(there, highest, 0.0), 1, BQ)
            gl.store(OUT + cell + gl.arange(0, 1, total.type.layout),
                     gl.where(inside, total.to(gl.float32), float("nan")))  # fmt: skip
        else:
            gl.store(ROWMAX + gl.cast(cell, gl.int64) * maxima_stride + row, highest)
        if PAIRS == 2:
            inside, x_mask, count = also_inside, next_mask, next_count
            if (qj != qi) & (cell + 1 < last):
                # All warps have read the first query: they have met since.
                qi = qj
                q_first, q_count, q_mask = _query(qi, left)
                bring(q_desc, q_first, q_ready, q_tile)
                mbarrier.wait(q_ready, 1)
                query = q_tile.permute((1, 0)).load(query_in)


KERNEL = Kernel(short_query_hopper)
