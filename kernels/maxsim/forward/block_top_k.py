"""The best of many scores on a GPU: blocks of keys, the best of each, then the best of those.

A key is a score's bits in the order of numbers, and below them its position, so that no two are equal and
the result does not depend on how the work was cut. See Shanbhag et al., SIGMOD 2018, for the bitonic
top-k that `tl.topk` is.

Of very many scores most are not worth sorting. They are cut into groups first: the k best of all lie in the
k groups whose largest keys are the largest, for any other group's scores have those k above them.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from maxsim.forward.launch import INTERPRETED, Kernel, Launch, Options, enqueue
from maxsim.rows import MOST_REMEMBERED
from maxsim.topk import FEW

__all__ = ["MOST", "best_keys", "largest_keys", "positions", "warm"]

# Best of a block; what asks for more is sorted elsewhere.
MOST = FEW
# Small blocks are sorted sooner, but the best of two need another launch. The interpreter sees several
# blocks, and groups, sooner.
BLOCK, GROUP, GROUPED = (256, 8, 4096) if INTERPRETED else (512, 256, 1 << 17)
LARGEST_BLOCK = 2 * BLOCK
# Scores that a program cuts into groups.
SPAN = 8 * GROUP

# What a block is filled from: keys, a row's scores, or those of the groups in which listed scores lie.
_KEYS, _SCORES, _LISTED = 0, 1, 2


@triton.jit
def _key(SCORES, position, there, total):
    """Keys of scores of one row, the better the larger, and below all of them where there is none."""
    score = tl.load(SCORES + position, mask=there, other=0.0)
    # Adding zero makes −0 a 0, which it equals.
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    # Negative numbers have their magnitude in the bits below the sign: flipped, all compare as integers.
    bits = tl.where(score != score, -2147483648, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    # Counted from the end, so that of equals the first is the largest. Positions end before 2³².
    return tl.where(there, (bits.to(tl.int64) << 32) | (total - position), -(1 << 62) * 2)


@triton.jit(do_not_specialize=["total", "spans"], do_not_specialize_on_alignment=["SCORES", "TARGET"])
def largest_keys(SCORES, TARGET, total: tl.int64, spans: tl.int32, SPAN: tl.constexpr, GROUP: tl.constexpr):
    """SCORES float32 [rows, total] → TARGET int64 [rows, spans · SPAN / GROUP], the largest key of each GROUP
    scores. Grid (rows · spans,)."""
    GROUPS: tl.constexpr = SPAN // GROUP
    row, span = (tl.program_id(0) // spans).to(tl.int64), tl.program_id(0) % spans
    position = span.to(tl.int64) * SPAN + tl.arange(0, SPAN)
    key = _key(SCORES + row * total, position, position < total, total)
    largest = tl.max(tl.reshape(key, [GROUPS, GROUP]), axis=1)
    tl.store(TARGET + (row * spans + span) * GROUPS + tl.arange(0, GROUPS), largest)


_RUNTIME = ["total", "count", "blocks", "wanted"]
_TENSORS = ["SOURCE", "LISTED", "TARGET"]


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_TENSORS)
def best_keys(
    SOURCE, LISTED, TARGET, total: tl.int64, count: tl.int64, blocks: tl.int32, wanted: tl.int32,
    BLOCK: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, FILLED: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """`count` keys a row, of SOURCE int64 [rows, count], or of the scores SOURCE float32 [rows, total], or of
    GROUP of those around each of LISTED int64 [rows, count / GROUP] → TARGET int64: [rows, wanted] positions
    of the best, best first, if LAST, else [rows, blocks, K] keys. Positions are counted from the end, here
    and in LISTED. Grid (rows · blocks,).
    """
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    number = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = number < count
    if FILLED == 0:
        key = tl.load(SOURCE + row * count + number, mask=there, other=-(1 << 62) * 2)
    elif FILLED == 1:
        key = _key(SOURCE + row * total, number, there, total)
    else:
        listed = tl.load(LISTED + row * (count // GROUP) + number // GROUP, mask=there, other=total)
        position = (total - listed) // GROUP * GROUP + number % GROUP
        key = _key(SOURCE + row * total, position, there & (position < total), total)
    key = tl.topk(key, K)
    place = tl.arange(0, K)
    if LAST:
        tl.store(TARGET + row * wanted + place, key & 0xFFFFFFFF, mask=place < wanted)
    else:
        tl.store(TARGET + (row * blocks + block) * K + place, key)


LARGEST = Kernel(largest_keys)
BEST = Kernel(best_keys)


class _Filling(NamedTuple):
    """What blocks are filled from: tensors as in `best_keys`, and how many keys a row that makes."""

    filled: int
    source: Tensor
    listed: Tensor | None
    keys: int


def positions(scores: Tensor, k: int) -> Tensor:
    """Positions int64 [rows, k] of the k ≤ MOST best of float32 scores [rows, N], N below 2³²."""
    scores = scores.contiguous()
    rows, total = scores.shape
    filling = _Filling(_SCORES, scores, None, total)
    if total >= max(GROUPED, 2 * k * GROUP):
        spans = -(-total // SPAN)
        keys = torch.empty(rows, spans * (SPAN // GROUP), dtype=torch.int64, device=scores.device)
        _largest(scores, keys, spans)
        listed = _best(_Filling(_KEYS, keys, None, keys.shape[1]), rows, total, k)
        filling = _Filling(_LISTED, scores, listed, k * GROUP)
    return total - _best(filling, rows, total, k)


def _best(filling: _Filling, rows: int, total: int, k: int) -> Tensor:
    """Positions int64 [rows, k] of the best, counted from the end."""
    while True:
        last = filling.keys <= LARGEST_BLOCK
        blocks = 1 if last else -(-filling.keys // BLOCK)
        shape = (rows, k) if last else (rows, blocks * MOST)
        target = torch.empty(shape, dtype=torch.int64, device=filling.source.device)
        _launch(filling, target, (total, filling.keys, blocks, k), last)
        if last:
            return target
        filling = _Filling(_KEYS, target, None, blocks * MOST)


def warm(device: torch.device) -> None:
    """Compile every variant."""
    scores = torch.zeros(1, LARGEST_BLOCK, dtype=torch.float32, device=device)
    keys = torch.zeros(1, LARGEST_BLOCK, dtype=torch.int64, device=device)
    target = torch.empty(1, MOST, dtype=torch.int64, device=device)
    _largest(scores, torch.empty_like(keys), 1)
    for count, last in ((BLOCK, False), (BLOCK, True), (LARGEST_BLOCK, True)):
        for filling in (
            _Filling(_KEYS, keys, None, count),
            _Filling(_SCORES, scores, None, count),
            _Filling(_LISTED, scores, keys, count),
        ):
            _launch(filling, target, (LARGEST_BLOCK, count, 1, 1), last)


def _largest(scores: Tensor, keys: Tensor, spans: int) -> None:
    rows, total = scores.shape
    enqueue([_prepared_largest(rows, total, spans, scores.device)], (scores, keys))


def _launch(filling: _Filling, target: Tensor, sizes: tuple[int, int, int, int], last: bool) -> None:
    block = LARGEST_BLOCK if last and filling.keys > BLOCK else BLOCK
    constants = (block, MOST, GROUP, filling.filled, last)
    launch = _prepared_best(target.shape[0] * sizes[2], sizes, constants, target.device)
    enqueue([launch], (filling.source, filling.listed, target))


@lru_cache(MOST_REMEMBERED)
def _prepared_largest(rows: int, total: int, spans: int, device: torch.device) -> Launch:
    constants = (SPAN, GROUP)
    return Launch(LARGEST, rows * spans, constants, range(2), (total, spans), constants, Options(8), device)


@lru_cache(MOST_REMEMBERED)
def _prepared_best(
    programs: int, sizes: tuple[int, int, int, int], constants: tuple[Any, ...], device: torch.device
) -> Launch:
    return Launch(BEST, programs, constants, range(3), sizes, constants, Options(16), device)
