"""One request on its way through the engine, and what comes back."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidates

__all__ = ["Explanation", "Job", "Ranking", "deliver"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """For each query row the document row that won it: `tokens` int64 `[Lq]`, `similarities` fp32 `[Lq]`."""

    tokens: NDArray[np.int64]
    similarities: NDArray[np.float32]


class Ranking(NamedTuple):
    """The best `k` candidates, best first.

    `positions` int64 `[k]` are places in the request (or in the collection), `scores` fp32 `[k]` raw MaxSim.
    `ids` stands where the request named none. `timings_s` maps a stage to seconds; `kernel` is the time of
    the whole work list that the request was part of. `engine_s` is from the look-up of
    the candidates to this ranking, waits for the rest of a batch among it.
    """

    positions: NDArray[np.int64]
    scores: NDArray[np.float32]
    ids: Sequence[str] | None
    missing: NDArray[np.int64]
    candidates: int
    document_tokens: int
    timings_s: dict[str, float]
    kernel: str
    engine_s: float
    explanations: Sequence[Explanation] | None = None


@dataclass(slots=True, eq=False)
class Job:
    """A query `[Lq, dim]` fp32 or fp16 and its candidates, the queue's until the engine's thread takes it."""

    query: NDArray[np.generic]
    candidates: Candidates
    top_n: int | None
    explain: bool
    deadline: float  # time.perf_counter() clock
    future: asyncio.Future[Ranking]
    enqueued: float = field(default_factory=time.perf_counter)
    abandoned: bool = False

    def deliver(self, outcome: Ranking | BaseException) -> None:
        """Hand the outcome to the waiting request, from any thread; a request that left gets nothing."""
        deliver([(self, outcome)])

    def settle(self, outcome: Ranking | BaseException) -> None:
        """The same, on the event loop's own thread."""
        if self.future.done():
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


def deliver(outcomes: Sequence[tuple[Job, Ranking | BaseException]]) -> None:
    """Hand each its outcome, from any thread; all of them are of one event loop.

    It is woken up once. Each wake-up lets go of the interpreter, and may wait long to have it again.
    """
    loop = outcomes[0][0].future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_settle, outcomes)


def _settle(outcomes: Sequence[tuple[Job, Ranking | BaseException]]) -> None:
    for job, outcome in outcomes:
        job.settle(outcome)
