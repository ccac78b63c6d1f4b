"""Row maxima at the rate of Hopper's tensor cores: the copy engine fills a ring, two warpgroups take turns.

    copy warp    ──TMA──▶  ring of document tiles [BD, D]  ──▶  warpgroup 0: rows   0 … BQ/2 of the chunk
                                                           ──▶  warpgroup 1: rows BQ/2 … BQ

One program stays on an SM with one chunk of BQ query rows and walks over the documents (or segments of
them) of its group. A product of 64 × 128 tokens per instruction leaves the accumulator in registers and
its maximum is taken there; meanwhile the tensor core works for the other warpgroup, which is always half
a tile behind: `turn` says whose products come next. Without that order both warpgroups would multiply
together, then both take maxima together, and the tensor core would idle.
"""

from functools import cache

import torch
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from maxsim.forward.launch import Kernel

__all__ = ["KERNEL", "REGISTERS", "descriptor", "long_query_hopper", "programs"]

# Of each thread that multiplies: 128 accumulators, and room for the rest. The copy warp needs few.
REGISTERS = 232

_RUNTIME = ["q_count", "x_item", "x_rows", "x_ragged", "documents", "listed", "first_column", "columns", "segments",
            "chunks", "maxima_stride"]  # fmt: skip
_INDICES = ["X_START", "X_LENGTH", "X_INDEX", "ROWMAX"]


@gluon.jit
def _max_or_nan(a, b):
    return gl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def _item(item, X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed, first_column, segments,
          BD: gl.constexpr):  # fmt: skip
    """First row and number of tokens of a work item: a segment of a document, a whole number of tiles."""
    column, segment = first_column + item // segments, item % segments
    document = gl.load(X_INDEX + column, mask=listed != 0, other=0)
    document = gl.where(listed != 0, document, column.to(gl.int64))
    document = gl.where((document >= 0) & (document < documents), document, 0)
    start = gl.load(X_START + document, mask=x_ragged != 0, other=0) + document * x_item
    count = (gl.load(X_LENGTH + document, mask=x_ragged != 0, other=0) + x_rows).to(gl.int32)
    span = (count + segments * BD - 1) // (segments * BD) * BD
    low = gl.minimum(segment * span, count)
    return start.to(gl.int32) + low, gl.minimum(span, count - low)


@gluon.jit
def _copy(
    q_desc, x_desc, q_tile, ring, q_ready, full, empty, chunk, first, step, items,
    X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed, first_column, segments,
    BQ: gl.constexpr, BD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copy warp: the query chunk once, then every tile of every item into the ring."""
    HALF: gl.constexpr = BQ // 2
    mbarrier.expect(q_ready, 2 * q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [chunk * BQ, 0], q_ready, q_tile.index(0))
    tma.async_copy_global_to_shared(q_desc, [chunk * BQ + HALF, 0], q_ready, q_tile.index(1))
    tile = 0
    for item in range(first, items, step):
        start, count = _item(item, X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed,
                             first_column, segments, BD)  # fmt: skip
        for token in range(0, count, BD):
            slot = tile % STAGES
            # The ring starts out empty: the first wait in each slot is for a phase that is already over.
            mbarrier.wait(empty.index(slot), ((tile // STAGES) & 1) ^ 1)
            # Rows past the end of the document are its neighbour's, and past the store's end zeros:
            # they are copied, and masked before the maximum.
            mbarrier.expect(full.index(slot), x_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(x_desc, [start + token, 0], full.index(slot), ring.index(slot))
            tile += 1


@gluon.jit
def _multiply(
    q_tile, ring, q_ready, full, empty, turn, ROWMAX, q_count, maxima_stride, chunk, first, step, items,
    X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed, first_column, segments,
    GROUP: gl.constexpr, BQ: gl.constexpr, BD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A warpgroup: maxima of its half of the query rows over every item."""
    HALF: gl.constexpr = BQ // 2
    wgmma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BD, 16])
    query_axis: gl.constexpr = gl.SliceLayout(1, wgmma)
    row = chunk * BQ + GROUP * HALF + gl.arange(0, HALF, query_axis)
    token_of_column = gl.arange(0, BD, gl.SliceLayout(0, wgmma))
    zero = gl.zeros([HALF, BD], gl.float32, wgmma)
    mbarrier.wait(q_ready, 0)
    tile = 0
    for item in range(first, items, step):
        _, count = _item(item, X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed,
                         first_column, segments, BD)  # fmt: skip
        best = gl.full([HALF], float("-inf"), gl.float32, query_axis)
        for token in range(0, count, BD):
            slot = tile % STAGES
            mbarrier.wait(full.index(slot), (tile // STAGES) & 1)
            mbarrier.wait(turn.index(GROUP), tile & 1)
            products = warpgroup_mma(
                q_tile.index(GROUP), ring.index(slot).permute((1, 0)), zero, use_acc=False, is_async=True
            )
            # Issued, not finished: the other group's products queue up behind these.
            mbarrier.arrive(turn.index(1 - GROUP), count=1)
            products = warpgroup_mma_wait(0, deps=(products,))
            # The tensor core has read this slot: only now may the copy engine refill it.
            mbarrier.arrive(empty.index(slot), count=1)
            if token + BD > count:
                products = gl.where((token + token_of_column < count)[None, :], products, float("-inf"))
            best = _max_or_nan(best, gl.reduce(products, 1, _max_or_nan))
            tile += 1
        gl.store(ROWMAX + item.to(gl.int64) * maxima_stride + row, best, mask=row < q_count)


@gluon.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_INDICES)
def long_query_hopper(
    q_desc, x_desc, X_START, X_LENGTH, X_INDEX, ROWMAX,
    q_count: "i32", x_item: "i64", x_rows: "i64", x_ragged: "i32", documents: "i64", listed: "i32",
    first_column: "i32", columns: "i32", segments: "i32", chunks: "i32", maxima_stride: "i64",
    D: gl.constexpr, BQ: gl.constexpr, BD: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """q_desc, x_desc: boxes [BQ/2, D] and [BD, D] of packed rows → ROWMAX [columns, segments, maxima_stride].

    A column is a document, or the document that X_INDEX lists. Grid (chunks · groups,).
    """
    program = gl.program_id(0)
    chunk, first, step = program % chunks, program // chunks, gl.num_programs(0) // chunks
    items = columns * segments
    q_tile = gl.allocate_shared_memory(q_desc.dtype, [2, BQ // 2, D], q_desc.layout)
    ring = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BD, D], x_desc.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)  # both warpgroups must have read it
    mbarrier.init(turn.index(0), count=1)
    mbarrier.init(turn.index(1), count=1)
    mbarrier.arrive(turn.index(0), count=1)
    # The copy engine must see the barriers as initialized.
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (q_tile, ring, q_ready, full, empty, turn, ROWMAX, q_count, maxima_stride, chunk, first, step,
                         items, X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed, first_column,
                         segments, 0, BQ, BD, STAGES)),
            (_multiply, (q_tile, ring, q_ready, full, empty, turn, ROWMAX, q_count, maxima_stride, chunk, first, step,
                         items, X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed, first_column,
                         segments, 1, BQ, BD, STAGES)),
            (_copy, (q_desc, x_desc, q_tile, ring, q_ready, full, empty, chunk, first, step, items,
                     X_START, X_LENGTH, X_INDEX, x_item, x_rows, x_ragged, documents, listed, first_column, segments,
                     BQ, BD, STAGES)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )  # fmt: skip


def descriptor(table: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """What the copy engine needs to know of a row table [R, d]: boxes of rows × columns, zeros past its edges."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor(table, list(table.shape), list(table.stride()), [rows, columns], layout)


@cache
def programs(device: torch.device) -> int:
    """One program an SM."""
    return torch.cuda.get_device_properties(device).multi_processor_count


KERNEL = Kernel(long_query_hopper)
