"""The kernels at the two ends of a graph: one fetches what the host has written, one delivers the scores.

They read and write pinned memory in place, and are done before the copy engine would begin. They read the
device's clock, too: with an event at the end of each stage, a graph is launched 12 µs later.

Imported where there is a GPU; elsewhere Triton may be missing.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

__all__ = ["Clocks", "LongQuery", "deliver", "fetch", "warm_up"]

# int64 words, or scores, that a program carries.
_WORDS = 1024


class LongQuery(NamedTuple):
    """Rows to fetch from one of `places` int64 [places, words], whose number is the upload's word `place_at`,
    to `rows` int64 [words]."""

    places: Tensor
    place_at: int
    rows: Tensor


class Clocks:
    """Readings in ns: the beginnings of `fetch` and `deliver`, then the end of each of their programs.

    Between the two kernels lies the scoring, and waits for launches. What `deliver` has written may be on its
    way to the host yet when it reads the clock.
    """

    def __init__(self, words: int, row_words: int, pairs: int) -> None:
        self._fetched = 2 + _programs(words) + _programs(row_words)
        self.readings = self._fetched + _programs(pairs)

    def stages_s(self, readings: list[int]) -> dict[str, float]:
        fetching, delivering = readings[:2]
        fetched, delivered = max(readings[2 : self._fetched]), max(readings[self._fetched :])
        return {
            "upload": 1e-9 * (fetched - fetching),
            "kernel": 1e-9 * (delivering - fetched),
            "download": 1e-9 * (delivered - delivering),
        }


@triton.jit(do_not_specialize=["words", "row_words", "place_words", "place_at"])
def _fetch(
    UP, OUT, PLACES, ROWS, CLOCKS, words, row_words, place_words, place_at, WORDS: tl.constexpr,
):  # fmt: skip
    """UP int64 [words] → OUT, and row_words int64 of one of PLACES → ROWS. Grid (all blocks of WORDS,)."""
    program = tl.program_id(0)
    if program == 0:
        tl.store(CLOCKS, globaltimer())
    at = tl.arange(0, WORDS)
    blocks = tl.cdiv(words, WORDS)
    if program < blocks:
        at += program * WORDS
        tl.store(OUT + at, tl.load(UP + at, mask=at < words), mask=at < words)
    else:
        at += (program - blocks) * WORDS
        place = PLACES + tl.load(UP + place_at) * place_words
        tl.store(ROWS + at, tl.load(place + at, mask=at < row_words), mask=at < row_words)
    tl.debug_barrier()  # the clock is read once all of it is here
    tl.store(CLOCKS + 2 + program, globaltimer())


@triton.jit(do_not_specialize=["pairs", "first_clock"])
def _deliver(SCORES, OUT, CLOCKS, pairs, first_clock, WORDS: tl.constexpr):
    """SCORES float32 [pairs] → OUT. Grid (blocks of WORDS,)."""
    program = tl.program_id(0)
    if program == 0:
        tl.store(CLOCKS + 1, globaltimer())
    at = program * WORDS + tl.arange(0, WORDS)
    tl.store(OUT + at, tl.load(SCORES + at, mask=at < pairs), mask=at < pairs)
    tl.debug_barrier()
    tl.store(CLOCKS + first_clock + program, globaltimer())


def fetch(up: Tensor, out: Tensor, clocks: Tensor, long_query: LongQuery | None = None) -> None:
    """Copy int64 [words], and a long query's rows, to the device; all tensors pass for the device's."""
    words, row_words = len(up), 0
    places, place_at, rows = up.view(1, -1), 0, out
    if long_query is not None:
        places, place_at, rows = long_query
        row_words = rows.numel()
    _fetch[(_programs(words) + _programs(row_words),)](
        up, out, places, rows, clocks, words, row_words, places.stride(0), place_at, _WORDS
    )  # fmt: skip


def deliver(scores: Tensor, out: Tensor, clocks: Tensor) -> None:
    """Copy scores float32 [pairs] to the host, and read the clock at both ends."""
    programs = _programs(len(scores))
    _deliver[(programs,)](scores, out, clocks, len(scores), len(clocks) - programs, _WORDS)


def warm_up(device: torch.device) -> None:
    """Compile both. There is one variant of each: no size is a part of it."""
    with torch.cuda.device(device):
        words = torch.zeros(8, dtype=torch.int64, device=device)
        fetch(words, words.clone(), words.clone())
        scores = torch.zeros(8, device=device)
        deliver(scores, scores.clone(), words)


def _programs(words: int) -> int:
    return -(-words // _WORDS)
