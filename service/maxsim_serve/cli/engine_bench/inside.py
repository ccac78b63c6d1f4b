"""The engine without HTTP: what batching gains, and whether its memory comes to rest."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import uvloop
from numpy.typing import NDArray

from ...engine import Candidates, Engine, Ranking, Scorer, make_scorer, warm_up
from ...engine.candidates import Resolved
from ...metrics import Metrics
from ...store import Part
from .corpus import DIM, Corpus
from .rows import Goal, Report

__all__ = ["batching", "memory"]

_CROWD = 64
_NOTHING = np.empty(0, np.int64)
_NUMBERS = np.arange(10_000)


@dataclass(frozen=True)
class _Resident(Candidates):
    """Documents of a corpus that is on the device, by number: the look-up reads where each of them is, as the
    store's does, but need not find its id first. What the store's adds up on its way is known here."""

    tokens: torch.Tensor
    corpus: Corpus
    chosen: NDArray[np.int64]
    rows: int
    longest: int
    normalize: bool = False
    dim: int = DIM

    @classmethod
    def of(cls, tokens: torch.Tensor, corpus: Corpus, chosen: NDArray[np.int64]) -> "_Resident":
        lengths = corpus.lengths[chosen]
        return cls(tokens, corpus, chosen, int(lengths.sum()), int(lengths.max()))

    def resolve(self) -> Resolved:
        starts, lengths = self.corpus.starts.take(self.chosen), self.corpus.lengths.take(self.chosen)
        part = Part(self.tokens, starts, lengths, _NUMBERS[: len(starts)], longest=self.longest)
        return Resolved([part], len(starts), _NOTHING, self.rows)


_Asked = tuple[NDArray[np.float16], _Resident]


def batching(report: Report, corpus: Corpus, requests: int) -> None:
    """Requests a second with 64 under way, batched and one by one."""
    metrics = Metrics()
    scorer = _scorer(metrics)
    for candidates in (100, 1000):
        asked = _asked(corpus, requests, (candidates, candidates), (32, 32))
        per_s = {}
        for name, max_batch_tokens in (("batched", 2_000_000), ("one by one", 1)):
            _serve(scorer, metrics, max_batch_tokens, asked[: requests // 4])
            started = time.perf_counter()
            _serve(scorer, metrics, max_batch_tokens, asked)
            per_s[name] = len(asked) / (time.perf_counter() - started)
            report.add(f"engine, {candidates:,} candidates, {name}", per_s[name], "1/s")
        gain = per_s["batched"] / per_s["one by one"]
        report.add(f"engine, {candidates:,} candidates: gain of batching", gain, "×", Goal(3, "at least"))


def memory(report: Report, corpus: Corpus, requests: int) -> None:
    """How much more the allocator keeps unused after all requests than after half of them."""
    metrics = Metrics()
    scorer = _scorer(metrics)
    asked = _asked(corpus, 400, (1, 2500), (1, 300))
    spare_bytes = []
    for _ in range(requests // len(asked)):
        _serve(scorer, metrics, 2_000_000, asked)
        spare_bytes.append(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
    half = spare_bytes[len(spare_bytes) // 2 - 1]
    report.add(f"allocator: reserved and unused after {requests:,} requests", spare_bytes[-1] / 1e6, "MB")
    report.add("allocator: more than after half of them", (spare_bytes[-1] - half) / 1e6, "MB", Goal(0))


def _scorer(metrics: Metrics) -> Scorer:
    device = torch.device("cuda", torch.cuda.current_device())
    warm_up(device, [(DIM, torch.float16)], metrics)
    return make_scorer(device, "stored", 0, metrics)


def _asked(corpus: Corpus, requests: int, candidates: tuple[int, int], rows: tuple[int, int]) -> list[_Asked]:
    rng = np.random.default_rng(9)
    tokens = torch.from_numpy(corpus.tokens).cuda()
    counts = rng.integers(candidates[0], candidates[1] + 1, requests)
    lengths = rng.integers(rows[0], rows[1] + 1, requests)
    return [
        (
            rng.standard_normal((int(length), DIM)).astype(np.float16),
            _Resident.of(tokens, corpus, rng.integers(0, len(corpus), int(count))),
        )
        for count, length in zip(counts, lengths, strict=True)
    ]


def _serve(scorer: Scorer, metrics: Metrics, max_batch_tokens: int, asked: Sequence[_Asked]) -> None:
    """On the event loop of the service."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(scorer, metrics, max_batch_tokens, asked))


async def _run(scorer: Scorer, metrics: Metrics, max_batch_tokens: int, asked: Sequence[_Asked]) -> None:
    engine = Engine(
        queue_depth=2 * _CROWD,
        max_batch_tokens=max_batch_tokens,
        retry_after_s=1.0,
        metrics=metrics,
        scorer=scorer,
    )
    engine.start()

    async def ask(first: int) -> None:
        for query, candidates in asked[first::_CROWD]:
            ranking: Ranking = await engine.rank(query, candidates, top_n=100, explain=False, deadline_s=60.0)
            assert len(ranking.positions) == min(100, len(candidates.chosen))

    await asyncio.gather(*(ask(first) for first in range(_CROWD)))
    await engine.drain(30.0)
