"""What the kernels written for Hopper share: how the copy engine is told of a table, and reductions.

The reductions are those of `rowsum`, spelled in Gluon, which cannot call Triton's.
"""

from functools import lru_cache

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from maxsim.forward.variant import Frame
from maxsim.rows import MOST_REMEMBERED, Layout

__all__ = ["bring", "frame", "max_or_nan", "sum_rows"]

_SHARED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


def frame(layout: Layout, rows: int, columns: int) -> Frame:
    """Boxes of rows × columns of a row table, zeros past its edges: wherever it lies, and whichever of its
    rows are items."""
    return _frame(layout.table_rows, layout.dim, layout.row_stride, rows, columns)


@lru_cache(MOST_REMEMBERED)
def _frame(table_rows: int, dim: int, row_stride: int, rows: int, columns: int) -> Frame:
    return Frame((table_rows, dim), (row_stride, 1), (rows, columns), _SHARED)


@gluon.jit
def bring(desc, row, ready, target):
    """Let the copy engine bring a box of rows; `ready` completes when it is there."""
    mbarrier.expect(ready, desc.block_type.nbytes)
    tma.async_copy_global_to_shared(desc, [row, 0], ready, target)


@gluon.jit
def max_or_nan(a, b):
    """The larger of two; NaN if either is."""
    return gl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def sum_rows(maxima, BLOCKS: gl.constexpr, ROWS: gl.constexpr):
    """As rowsum.sum_rows, in the same order: float64 [BLOCKS]. ROWS is 32 or 64."""
    total = maxima.to(gl.float64)
    if ROWS >= 64:
        total = gl.sum(total.reshape([BLOCKS * 32, 2]), axis=1)
    total = gl.sum(total.reshape([BLOCKS * 16, 2]), axis=1)
    total = gl.sum(total.reshape([BLOCKS * 8, 2]), axis=1)
    total = gl.sum(total.reshape([BLOCKS * 4, 2]), axis=1)
    total = gl.sum(total.reshape([BLOCKS * 2, 2]), axis=1)
    return gl.sum(total.reshape([BLOCKS, 2]), axis=1)
