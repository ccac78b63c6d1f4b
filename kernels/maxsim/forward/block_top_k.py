"""The best of many scores on a GPU: blocks of keys, the best of each, then the best of those.

A key is a score's bits in the order of numbers, and below them its position, so that no two are equal and
the result does not depend on how the work was cut. See Shanbhag et al., SIGMOD 2018, for the bitonic
top-k that `tl.topk` is.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from maxsim.forward.launch import INTERPRETED, Kernel, Options
from maxsim.topk import FEW

__all__ = ["MOST", "best_keys", "positions", "warm"]

# Best of a block; what asks for more is sorted elsewhere.
MOST = FEW
# The interpreter sees several blocks sooner.
BLOCK = 256 if INTERPRETED else 2048

_RUNTIME = ["count", "blocks", "wanted"]


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=["SOURCE", "TARGET"])
def best_keys(
    SOURCE, TARGET, count: tl.int64, blocks: tl.int32, wanted: tl.int32,
    BLOCK: tl.constexpr, K: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """SOURCE [rows, count], float32 scores if FIRST, else int64 keys → TARGET int64: [rows, wanted] positions
    of the best, best first, if LAST, else [rows, blocks, K] keys. Grid (rows · blocks,).
    """
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    position = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = position < count
    # Below every key: positions end before 2³².
    none = tl.full([1], -(1 << 62) * 2, tl.int64)
    if FIRST:
        score = tl.load(SOURCE + row * count + position, mask=there, other=0.0)
        # Adding zero makes −0 a 0, which it equals.
        bits = (score + 0.0).to(tl.int32, bitcast=True)
        # Negative numbers have their magnitude in the bits below the sign: flipped, all compare as integers.
        bits = tl.where(score != score, -2147483648, bits ^ ((bits >> 31) & 0x7FFFFFFF))
        key = (bits.to(tl.int64) << 32) | (count - position)
    else:
        key = tl.load(SOURCE + row * count + position, mask=there, other=0)
    key = tl.topk(tl.where(there, key, none), K)
    place = tl.arange(0, K)
    if LAST:
        # Counted from the end of the scores, so that of equals the first is the largest.
        tl.store(TARGET + row * wanted + place, key & 0xFFFFFFFF, mask=place < wanted)
    else:
        tl.store(TARGET + (row * blocks + block) * K + place, key)


KERNEL = Kernel(best_keys, tensors=slice(0, 2))


def positions(scores: Tensor, k: int) -> Tensor:
    """Positions int64 [rows, k] of the k ≤ MOST best of float32 scores [rows, N], N below 2³²."""
    rows, total = scores.shape
    source, first = scores.contiguous(), True
    while True:
        count = source.shape[1]
        blocks = -(-count // BLOCK)
        last = blocks == 1
        shape = (rows, k) if last else (rows, blocks * MOST)
        target = torch.empty(shape, dtype=torch.int64, device=scores.device)
        _launch(source, target, (count, blocks, k), first, last)
        if last:
            return total - target
        source, first = target, False


def warm(device: torch.device) -> None:
    """Compile every variant."""
    for first, dtype in ((True, torch.float32), (False, torch.int64)):
        for last in (True, False):
            source = torch.zeros(1, 1, dtype=dtype, device=device)
            target = torch.empty(1, MOST, dtype=torch.int64, device=device)
            _launch(source, target, (1, 1, 1), first, last)


def _launch(source: Tensor, target: Tensor, sizes: tuple[int, int, int], first: bool, last: bool) -> None:
    constants = (BLOCK, MOST, first, last)
    programs = source.shape[0] * sizes[1]
    arguments = (source, target, *sizes)
    KERNEL.launch(programs, (first, last), arguments, lambda: constants, Options(16), source.device)
