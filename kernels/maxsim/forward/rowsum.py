"""Reductions that every forward kernel shares, so that a score has the same bits whichever of them ran.

A maximum is exact, so documents may be cut anywhere. A sum is not: rows are added in float64 in one
fixed order, pairwise within aligned blocks of BLOCK_ROWS rows, blocks in ascending order, and the
total is rounded to float32 once. Rows that do not exist or are masked add an exact zero.
"""

import triton
import triton.language as tl

__all__ = ["BLOCK_ROWS", "add_in_order", "largest", "max_or_nan", "sum_rows"]

BLOCK_ROWS = 64

# The interpreter calls a reduction's function once an element, a thousand times slower than tl.max.
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def max_or_nan(a, b):
    """The larger of two; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(tile, AXIS: tl.constexpr):
    """The largest element along an axis; NaN where there is one."""
    if _INTERPRETED:
        spoiled = tl.max((tile != tile).to(tl.int32), AXIS) != 0
        return tl.where(spoiled, float("nan"), tl.max(tile, AXIS))
    else:  # noqa: RET505 — the compiler must see only one of the two
        return tl.reduce(tile, AXIS, max_or_nan)


@triton.jit
def sum_rows(maxima, BLOCKS: tl.constexpr, ROWS: tl.constexpr):
    """maxima [BLOCKS · ROWS], ROWS a power of two up to BLOCK_ROWS → float64 [BLOCKS].

    Neighbours are added, then neighbours of those, and so on: each step adds two numbers, so neither
    the layout of the tensor nor the number of warps can change the order.
    """
    total = maxima.to(tl.float64)
    if ROWS >= 64:
        total = tl.sum(tl.reshape(total, [BLOCKS * 32, 2]), axis=1)
    if ROWS >= 32:
        total = tl.sum(tl.reshape(total, [BLOCKS * 16, 2]), axis=1)
    if ROWS >= 16:
        total = tl.sum(tl.reshape(total, [BLOCKS * 8, 2]), axis=1)
    total = tl.sum(tl.reshape(total, [BLOCKS * 4, 2]), axis=1)
    total = tl.sum(tl.reshape(total, [BLOCKS * 2, 2]), axis=1)
    return tl.sum(tl.reshape(total, [BLOCKS, 2]), axis=1)


@triton.jit
def add_in_order(total, sums):
    """total [N] plus each column of sums [N, 2ᵏ], the first one first."""
    COLUMNS: tl.constexpr = sums.shape[1]
    if COLUMNS == 1:
        return total + tl.reshape(sums, [sums.shape[0]])
    else:  # noqa: RET505 — the compiler must see only one of the two
        halves = tl.permute(tl.reshape(sums, [sums.shape[0], 2, COLUMNS // 2]), (0, 2, 1))
        first, second = tl.split(halves)
        return add_in_order(add_in_order(total, first), second)
