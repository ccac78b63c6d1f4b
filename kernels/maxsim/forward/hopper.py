"""Row maxima at the rate of Hopper's tensor cores: the copy engine fills a ring, two warpgroups take turns.

    copy warp ──TMA──▶ ring of document tiles [BD, D] ──▶ warpgroup 0: rows   0 … BQ/2 of the chunk ──▶ adding
                                                      ──▶ warpgroup 1: rows BQ/2 … BQ               ──▶ warps

One program stays on an SM with one chunk of BQ query rows, which lie in registers, and walks over the
documents (or segments of them) of its group. A product of 64 × 128 tokens per instruction leaves the
accumulator in registers and its maximum is taken there; meanwhile the tensor core works for the other
warpgroup, which is always half a tile behind: `turn` says whose products come next. Without that order both
warpgroups would multiply together, then both take maxima together, and the tensor core would idle.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from maxsim.forward.copy_engine import bring, max_or_nan, sum_rows
from maxsim.forward.launch import Kernel

__all__ = ["KERNEL", "REGISTERS", "long_query_hopper"]

# Of each thread that multiplies: 128 accumulators, 64 with query rows, and some more. The others need few.
REGISTERS, COPY_REGISTERS = 232, gl.constexpr(40)
# Float64 has to wait for the tensor core, and one warp would not keep up with short documents.
ADDING_WARPS = gl.constexpr(2)

_RUNTIME = [
    "q_count", "x_item", "x_rows", "x_ragged", "documents", "listed", "first_column", "columns", "segments",
    "chunks", "maxima_stride", "block_stride", "score_stride",
]  # fmt: skip
_INDICES = ["X_START", "X_LENGTH", "X_MASK", "X_INDEX", "ROWMAX", "SUMS", "SCORES"]


@gluon.jit
def _item(item, items, where, BD: gl.constexpr):
    """First row, first mask and number of tokens of a work item: a segment of a document, whole tiles."""
    X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed, first_column, segments = where
    column, segment = first_column + item, 0
    if segments > 1:
        # A division takes as long as a tile: only where it must be.
        column, segment = first_column + item // segments, item % segments
    there = item < items
    # Rows are numbered in 32 bits: the copy engine knows no others.
    document = column
    if listed != 0:
        wanted = gl.load(X_INDEX + column, mask=there, other=0)
        document = gl.where((wanted >= 0) & (wanted < documents), wanted, 0).to(gl.int32)
    start, count = document * x_item, x_rows
    if x_ragged != 0:
        start = gl.load(X_START + document, mask=there, other=0).to(gl.int32)
        count = gl.load(X_LENGTH + document, mask=there, other=0).to(gl.int32)
    span = count
    if segments > 1:
        span = (count + segments * BD - 1) // (segments * BD) * BD
    low = gl.minimum(segment * span, count)
    mask_start = gl.where(x_ragged != 0, start, document * x_rows)
    return start + low, mask_start + low, gl.minimum(span, count - low)


@gluon.jit
def _copy(
    x_desc, ring, full, empty, work, where, BD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copy warp: every tile of every item into the ring, but for the first, which is under way."""
    _, first, step, items = work
    tile = 0
    for item in range(first, items, step):
        # Looked up when it is due, not an item ahead as in _multiply: carried through this loop, `count` is
        # taken for an invariant by Triton 3.6, and each document gets as many tiles as the first. The ring
        # is ahead in any case.
        start, _, count = _item(item, items, where, BD)
        for token in range(0, count, BD):
            slot = tile % STAGES
            if (item != first) | (token != 0):
                # The ring starts out empty: the first wait in each slot is for a phase that is already over.
                mbarrier.wait(empty.index(slot), ((tile // STAGES) & 1) ^ 1)
                # Rows past the end of the document are its neighbour's, and past the store's end zeros:
                # they are copied, and masked before the maximum.
                bring(x_desc, start + token, full.index(slot), ring.index(slot))
            tile += 1


@gluon.jit
def _tile_maxima(query, tokens, mine, other, read, parity, count, live, query_axis: gl.constexpr,
                 MASKED: gl.constexpr):  # fmt: skip
    """query [HALF, D] · tokens [WIDTH, D] → the maximum over the first `count` tokens, float32 [HALF].

    Waits for this warpgroup's turn to multiply, and says when the tokens have been read.
    """
    HALF: gl.constexpr = query.shape[0]
    WIDTH: gl.constexpr = tokens.shape[0]
    wgmma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16]
    )
    query = gl.convert_layout(query, gl.DotOperandLayout(0, wgmma, 2))
    zero = gl.zeros([HALF, WIDTH], gl.float32, wgmma)
    mbarrier.wait(mine, parity)
    products = warpgroup_mma(query, tokens.permute((1, 0)), zero, use_acc=False, is_async=True)
    # Issued, not finished: the other group's products queue up behind these.
    mbarrier.arrive(other, count=1)
    products = warpgroup_mma_wait(0, deps=(products,))
    # The tensor core has read this slot: only now may the copy engine refill it.
    mbarrier.arrive(read, count=1)
    if MASKED:
        live = gl.convert_layout(live, gl.SliceLayout(0, wgmma))
        products = gl.where(live[None, :], products, float("-inf"))
    elif count < WIDTH:
        token = gl.arange(0, WIDTH, gl.SliceLayout(0, wgmma))
        products = gl.where((token < count)[None, :], products, float("-inf"))
    return gl.convert_layout(gl.reduce(products, 1, max_or_nan), query_axis)


@gluon.jit
def _multiply(
    q_tile, ring, q_ready, full, empty, turn, maxima, ready, added, ROWMAX, X_MASK, q_count, maxima_stride,
    work, where,
    GROUP: gl.constexpr, BQ: gl.constexpr, BD: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr,
    SUM_ROWS: gl.constexpr,
):  # fmt: skip
    """A warpgroup: maxima of its half of the query rows over every item."""
    chunk, first, step, items = work
    HALF: gl.constexpr = BQ // 2
    NARROW: gl.constexpr = BD // 2
    wgmma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BD, 16]
    )
    query_axis: gl.constexpr = gl.SliceLayout(1, wgmma)
    token_axis: gl.constexpr = gl.SliceLayout(0, wgmma)
    row = chunk * BQ + GROUP * HALF + gl.arange(0, HALF, query_axis)
    mine, other = turn.index(GROUP), turn.index(1 - GROUP)
    mbarrier.wait(q_ready, 0)
    # Read from shared memory with each tile, it would take a third of that memory's rate, or half of it.
    query = q_tile.index(GROUP).load(gl.DotOperandLayout(0, wgmma, 2))
    tile, done = 0, 0
    _, mask_start, count = _item(first, items, where, BD)
    for item in range(first, items, step):
        _, next_mask_start, next_count = _item(item + step, items, where, BD)
        best = gl.full([HALF], float("-inf"), gl.float32, query_axis)
        for token in range(0, count, BD):
            slot, parity, left = tile % STAGES, tile & 1, count - token
            live = gl.full([BD], True, gl.int1, token_axis)
            if MASKED:
                # Asked for here, used after the products.
                column = gl.arange(0, BD, token_axis)
                live = gl.load(X_MASK + mask_start + token + column, mask=column < left, other=False)
            mbarrier.wait(full.index(slot), (tile // STAGES) & 1)
            tokens, read = ring.index(slot), empty.index(slot)
            highest = best
            if MASKED or left > NARROW:
                highest = _tile_maxima(
                    query, tokens, mine, other, read, parity, left, live, query_axis, MASKED
                )
            else:
                # The end of a document: half a tile costs half.
                end = tokens.slice(0, NARROW, dim=0)
                highest = _tile_maxima(query, end, mine, other, read, parity, left, live, query_axis, False)
            best = max_or_nan(best, highest)
            tile += 1
        if SUM_ROWS == 0:
            gl.store(ROWMAX + gl.cast(item, gl.int64) * maxima_stride + row, best, mask=row < q_count)
        else:
            # Handed to the adding warps through one of two buffers.
            buffer = done % 2
            mbarrier.wait(added.index(buffer), ((done // 2) & 1) ^ 1)
            maxima.index(buffer).slice(GROUP * HALF, HALF).store(best)
            mbarrier.arrive(ready.index(buffer), count=1)
            done += 1
        mask_start = next_mask_start
        count = next_count


@gluon.jit
def _add(
    maxima, ready, added, SUMS, SCORES, q_count, block_stride, score_stride, work, first_column,
    BQ: gl.constexpr, SUM_ROWS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The adding warps: row maxima of each item → sums of SUM_ROWS rows, or scores. SUM_ROWS 0: nothing."""
    if SUM_ROWS != 0:
        chunk, first, step, items = work
        BLOCKS: gl.constexpr = BQ // SUM_ROWS
        lanes: gl.constexpr = gl.BlockedLayout([BQ // (32 * WARPS)], [32], [WARPS], [0])
        flat: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
        row = chunk * BQ + gl.arange(0, BQ, lanes)
        block = chunk * BLOCKS + gl.arange(0, BLOCKS, flat)
        done = 0
        for item in range(first, items, step):
            buffer = done % 2
            mbarrier.wait(ready.index(buffer), (done // 2) & 1)
            best = maxima.index(buffer).load(lanes)
            mbarrier.arrive(added.index(buffer), count=1)
            sums = gl.convert_layout(sum_rows(gl.where(row < q_count, best, 0.0), BLOCKS, SUM_ROWS), flat)
            column = first_column + item
            if block_stride == 0:
                # The chunk is the query: blocks in ascending order, each beside exact zeros.
                total = gl.sum(gl.where(block == 0, sums, 0.0), axis=0)
                for each in gl.static_range(1, BLOCKS):
                    total += gl.sum(gl.where(block == each, sums, 0.0), axis=0)
                gl.store(SCORES + column, total.to(gl.float32))
            elif block_stride == 1:
                # A block is a query.
                score = SCORES + block.to(gl.int64) * score_stride + column
                gl.store(score, sums.to(gl.float32), mask=block * SUM_ROWS < q_count)
            else:
                sum_of = SUMS + gl.cast(item, gl.int64) * block_stride + block
                gl.store(sum_of, sums, mask=block * SUM_ROWS < q_count)
            done += 1  # noqa: SIM113 — the compiler knows no enumerate


@gluon.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_INDICES)
def long_query_hopper(
    q_desc, x_desc, X_START, X_LENGTH, X_MASK, X_INDEX, ROWMAX, SUMS, SCORES,
    q_count: tl.int32, x_item: tl.int32, x_rows: tl.int32, x_ragged: tl.int32, documents: tl.int64,
    listed: tl.int32, first_column: tl.int32, columns: tl.int32, segments: tl.int32, chunks: tl.int32,
    maxima_stride: tl.int64,
    block_stride: tl.int32, score_stride: tl.int64,
    D: gl.constexpr, BQ: gl.constexpr, BD: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr,
    SUM_ROWS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """q_desc, x_desc: boxes [BQ/2, D] and [BD, D] of packed rows → row maxima, sums of rows, or scores.

    A column is a document, or the document that X_INDEX lists. What is written:
    SUM_ROWS 0             ROWMAX [columns, segments, maxima_stride]
    block_stride 0         SCORES [score_stride]: the chunk is the only query
    block_stride 1         SCORES [queries, score_stride]: each block of SUM_ROWS rows is a query
    else                   SUMS float64 [columns, block_stride], one of each SUM_ROWS rows
    Grid (chunks · groups,).
    """
    program = gl.program_id(0)
    items = columns * segments
    work = (program % chunks, program // chunks, gl.num_programs(0) // chunks, items)
    where = (X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed, first_column, segments)
    q_tile = gl.allocate_shared_memory(q_desc.dtype, [2, BQ // 2, D], q_desc.layout)
    ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BD, D], x_desc.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    mbarrier.init(full.index(0), count=1)
    # The copy engine must see barriers as initialized.
    fence_async_shared()
    # The query and the first tile are on their way while the warps are brought up.
    mbarrier.expect(q_ready, 2 * q_desc.block_type.nbytes)
    row = program % chunks * BQ
    tma.async_copy_global_to_shared(q_desc, [row, 0], q_ready, q_tile.index(0))
    tma.async_copy_global_to_shared(q_desc, [row + BQ // 2, 0], q_ready, q_tile.index(1))
    start, _, count = _item(program // chunks, items, where, BD)
    if count > 0:
        bring(x_desc, start, full.index(0), ring.index(0))
    for slot in gl.static_range(STAGES):
        if slot > 0:
            mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)  # both warpgroups must have read it
    maxima = gl.allocate_shared_memory(gl.float32, [2, BQ], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    added = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for buffer in gl.static_range(2):
        mbarrier.init(ready.index(buffer), count=2)
        mbarrier.init(added.index(buffer), count=1)
    mbarrier.init(turn.index(0), count=1)
    mbarrier.init(turn.index(1), count=1)
    mbarrier.arrive(turn.index(0), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (q_tile, ring, q_ready, full, empty, turn, maxima, ready, added, ROWMAX, X_MASK,
                         q_count, maxima_stride, work, where, 0, BQ, BD, STAGES, MASKED, SUM_ROWS)),
            (_multiply, (q_tile, ring, q_ready, full, empty, turn, maxima, ready, added, ROWMAX, X_MASK,
                         q_count, maxima_stride, work, where, 1, BQ, BD, STAGES, MASKED, SUM_ROWS)),
            (_copy, (x_desc, ring, full, empty, work, where, BD, STAGES)),
            (_add, (maxima, ready, added, SUMS, SCORES, q_count, block_stride, score_stride, work,
                    first_column, BQ, SUM_ROWS, ADDING_WARPS)),
        ],
        [4, 1, ADDING_WARPS],
        [REGISTERS, COPY_REGISTERS, COPY_REGISTERS],
    )  # fmt: skip


KERNEL = Kernel(long_query_hopper)
