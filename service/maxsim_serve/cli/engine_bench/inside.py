"""The engine without HTTP: what batching gains, and whether its memory comes to rest."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, cast

import numpy as np
import torch
import uvloop
from numpy.typing import NDArray

from ... import settings
from ...engine import Candidates, Engine, Ranking, Scorer, make_scorer, warm_up
from ...engine.candidates import Resolved, StoredCandidates
from ...metrics import Metrics
from ...store import Collection
from ...store.resident import ResidentIndex
from ...store.tier import Table
from .corpus import DIM, Corpus
from .rows import Goal, Report

__all__ = ["batching", "memory"]

_CROWD = 64
_ROUNDS = 3
# What a batch takes, either way.
_BATCH_TOKENS = {"batched": 2_000_000, "one by one": 1}


class _Spec(NamedTuple):
    dim: int = DIM
    normalize: bool = False


class _Documents:
    """Of a collection what a rerank asks for: documents of a corpus that is on the device."""

    spec = _Spec()

    def __init__(self, index: ResidentIndex) -> None:
        self.locate = index.locate
        self.locate_all = index.locate_all


@dataclass(frozen=True)
class _Found(Candidates):
    """Candidates that were looked up before the clock ran."""

    resolved: Resolved
    normalize: bool = False
    dim: int = DIM

    def resolve(self) -> Resolved:
        return self.resolved


_Asked = tuple[NDArray[np.float16], StoredCandidates | _Found]


def batching(report: Report, corpus: Corpus, requests: int) -> None:
    """Requests a second with 64 under way, batched and one by one: whole, and past the look-up of the ids."""
    metrics = Metrics()
    scorer = _scorer(metrics)
    index = _index(corpus)
    for candidates in (100, 1000):
        by_id = _asked(index, corpus, requests, (candidates, candidates), (32, 32))
        found = [(query, _Found(each.resolve())) for query, each in by_id]
        for part, asked in (("engine", by_id), ("engine past the look-up", found)):
            name = f"{part}, {candidates:,} candidates"
            rounds: dict[str, list[float]] = {how: [] for how in _BATCH_TOKENS}
            for _ in range(_ROUNDS):  # in turns: what else the machine does is to slow both alike
                for how, max_batch_tokens in _BATCH_TOKENS.items():
                    _serve(scorer, metrics, max_batch_tokens, asked[: requests // 4])
                    started = time.perf_counter()
                    _serve(scorer, metrics, max_batch_tokens, asked)
                    rounds[how].append(len(asked) / (time.perf_counter() - started))
            per_s = {how: median(rates) for how, rates in rounds.items()}
            for how, rate in per_s.items():
                report.add(f"{name}, {how}", rate, "1/s")
            gain = per_s["batched"] / per_s["one by one"]
            report.add(f"{name}: gain of batching", gain, "×", Goal(3, "at least"))


def memory(report: Report, corpus: Corpus, requests: int) -> None:
    """How much more the allocator keeps unused after all requests than after half of them."""
    metrics = Metrics()
    scorer = _scorer(metrics)
    asked = _asked(_index(corpus), corpus, 400, (1, 2500), (1, 300))
    spare_bytes = []
    for _ in range(requests // len(asked)):
        _serve(scorer, metrics, _BATCH_TOKENS["batched"], asked)
        spare_bytes.append(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
    half = spare_bytes[len(spare_bytes) // 2 - 1]
    report.add(f"allocator: reserved and unused after {requests:,} requests", spare_bytes[-1] / 1e6, "MB")
    report.add("allocator: more than after half of them", (spare_bytes[-1] - half) / 1e6, "MB", Goal(0))


def _scorer(metrics: Metrics) -> Scorer:
    device = torch.device("cuda", torch.cuda.current_device())
    warm_up(device, [(DIM, torch.float16)], metrics)
    return make_scorer(device, "stored", 0, metrics)


class _Rows(NamedTuple):
    """Of a table of the store what a look-up hands on."""

    tokens: torch.Tensor
    host_tokens: None = None


def _index(corpus: Corpus) -> ResidentIndex:
    rows = _Rows(torch.from_numpy(corpus.tokens).cuda())
    index = ResidentIndex(cast(Table, rows))
    none = np.zeros(len(corpus), np.int64)
    index.upsert(corpus.ids, none, corpus.starts, corpus.lengths, none, None)
    return index


def _asked(
    index: ResidentIndex, corpus: Corpus, requests: int, candidates: tuple[int, int], rows: tuple[int, int]
) -> list[tuple[NDArray[np.float16], StoredCandidates]]:
    rng = np.random.default_rng(9)
    documents = cast(Collection, _Documents(index))
    ids = corpus.ids
    counts = rng.integers(candidates[0], candidates[1] + 1, requests)
    lengths = rng.integers(rows[0], rows[1] + 1, requests)
    return [
        (
            rng.standard_normal((int(length), DIM)).astype(np.float16),
            StoredCandidates(
                documents, [ids[number] for number in rng.integers(0, len(ids), int(count)).tolist()]
            ),
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
        awake_s=settings.load(environ={}).awake_s,
    )
    engine.start()

    async def ask(first: int) -> None:
        for query, candidates in asked[first::_CROWD]:
            ranking: Ranking = await engine.rank(query, candidates, top_n=100, explain=False, deadline_s=60.0)
            assert len(ranking.positions) == min(100, ranking.candidates)

    await asyncio.gather(*(ask(first) for first in range(_CROWD)))
    await engine.drain(30.0)
