"""The best of many scores on a GPU: blocks of keys, the best of each, then the best of those.

A key is a score's bits in the order of numbers, and below them its position, so that no two are equal and
the result does not depend on how the work was cut. See Shanbhag et al., SIGMOD 2018, for the bitonic
top-k that `tl.topk` is.

Of very many scores most are not worth sorting. They are cut into groups first: the k best of all lie in the
k groups whose largest keys are the largest, for any other group's scores have those k above them.
"""

from functools import lru_cache

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
    of the best, best first, if LAST, else [rows, blocks, K] keys. Grid (rows · blocks,).
    """
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    number = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = number < count
    if FILLED == 0:
        key = tl.load(SOURCE + row * count + number, mask=there, other=-(1 << 62) * 2)
    elif FILLED == 1:
        key = _key(SOURCE + row * total, number, there, total)
    else:
        listed = tl.load(LISTED + row * (count // GROUP) + number // GROUP, mask=there, other=0)
        position = listed // GROUP * GROUP + number % GROUP
        key = _key(SOURCE + row * total, position, there & (position < total), total)
    key = tl.topk(key, K)
    place = tl.arange(0, K)
    if LAST:
        tl.store(TARGET + row * wanted + place, total - (key & 0xFFFFFFFF), mask=place < wanted)
    else:
        tl.store(TARGET + (row * blocks + block) * K + place, key)


LARGEST = Kernel(largest_keys)
BEST = Kernel(best_keys)


def positions(scores: Tensor, k: int) -> Tensor:
    """Positions int64 [rows, k] of the k ≤ MOST best of float32 scores [rows, N], N below 2³²."""
    scores = scores.contiguous()
    rows, total = scores.shape
    found = torch.empty(rows, k, dtype=torch.int64, device=scores.device)
    launches, left = _prepared(rows, total, k, scores.device)
    between = torch.empty(sum(left), dtype=torch.int64, device=scores.device).split(left) if left else ()
    enqueue(launches, (scores, *between, found, None))
    return found


@lru_cache(MOST_REMEMBERED)
def _prepared(rows: int, total: int, k: int, device: torch.device) -> tuple[list[Launch], list[int]]:
    """All launches, and how many keys or positions each but the last leaves for those after it.

    Operand 0 are the scores, operand n what the n-th launch leaves, the last one nothing.
    """
    launches: list[Launch] = []
    left: list[int] = []

    def add_best(filled: int, source: int, listed: int, keys: int) -> None:
        """The best of so many keys a row."""
        last = False
        while not last:
            last = keys <= LARGEST_BLOCK
            blocks = 1 if last else -(-keys // BLOCK)
            operands, numbers = (source, listed, len(left) + 1), (total, keys, blocks, k)
            launches.append(_best(rows * blocks, operands, numbers, filled, last, device))
            left.append(rows * (k if last else blocks * MOST))
            filled, source, listed, keys = _KEYS, len(left), -1, blocks * MOST

    if total >= max(GROUPED, 2 * k * GROUP):
        spans = -(-total // SPAN)
        launches.append(_largest(rows * spans, (total, spans), device))
        left.append(rows * spans * (SPAN // GROUP))
        add_best(_KEYS, 1, -1, spans * (SPAN // GROUP))
        add_best(_LISTED, 0, len(left), k * GROUP)
    else:
        add_best(_SCORES, 0, -1, total)
    return launches, left[:-1]


def _largest(programs: int, numbers: tuple[int, int], device: torch.device) -> Launch:
    constants = (SPAN, GROUP)
    return Launch(LARGEST, programs, constants, (0, 1), numbers, constants, Options(8), device)


def _best(
    programs: int,
    operands: tuple[int, int, int],
    numbers: tuple[int, int, int, int],
    filled: int,
    last: bool,
    device: torch.device,
) -> Launch:
    block = LARGEST_BLOCK if last and numbers[1] > BLOCK else BLOCK
    constants = (block, MOST, GROUP, filled, last)
    return Launch(BEST, programs, constants, operands, numbers, constants, Options(16), device)


def warm(device: torch.device) -> None:
    """Compile every variant."""
    scores = torch.zeros(1, LARGEST_BLOCK, dtype=torch.float32, device=device)
    keys, target = (torch.zeros(1, LARGEST_BLOCK, dtype=torch.int64, device=device) for _ in range(2))
    enqueue([_largest(1, (LARGEST_BLOCK, 1), device)], (scores, target))
    for count, last in ((BLOCK, False), (BLOCK, True), (LARGEST_BLOCK, True)):
        for filled in (_KEYS, _SCORES, _LISTED):
            launch = _best(1, (0, 1, 2), (LARGEST_BLOCK, count, 1, 1), filled, last, device)
            enqueue([launch], (keys if filled == _KEYS else scores, keys, target))
