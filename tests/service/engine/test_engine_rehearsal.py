"""Scores of before are ranked while the device works: nobody sees them, and nobody waits for that."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from maxsim_serve.engine import CpuScorer, Engine, InlineCandidates
from maxsim_serve.metrics import Metrics

RNG = np.random.default_rng(6)
QUERY = RNG.standard_normal((4, 16), np.float32)
DOCUMENTS = [RNG.standard_normal((3, 16), np.float32) for _ in range(9)]
STALE = {
    "nan": np.full(9, np.nan, np.float32),
    "huge": np.arange(9, dtype=np.float32)[::-1] * 1e30,
}


class Device(CpuScorer):
    """Shows stale scores until it has been waited for, and remembers how often they were looked at."""

    depth = 2

    def __init__(self, stale):
        self.stale = stale
        self.glances = []
        self.launches = 0

    def launch(self, requests):
        self.launches += 1
        return _Flight(self, super().launch(requests))


class _Flight:
    def __init__(self, device, launched):
        self.device, self.scored = device, launched.wait()

    def glance(self):
        self.device.glances.append(len(self.scored.results))
        results = [self.device.stale.copy() for _ in self.scored.results]
        return replace(self.scored, results=results, launches=[("stale", None)], stages_s={"kernel": 1e9})

    def wait(self):
        return self.scored


def answers(scorer, count, explain=False):
    async def run():
        engine = Engine(
            queue_depth=100, max_batch_tokens=1, retry_after_s=1.0, metrics=Metrics(), scorer=scorer
        )
        asked = [
            asyncio.ensure_future(
                engine.rank(QUERY, InlineCandidates(DOCUMENTS), top_n=5, explain=explain, deadline_s=30.0)
            )
            for _ in range(count)
        ]
        await asyncio.sleep(0)
        engine.start()
        rankings = await asyncio.gather(*asked)
        await engine.drain(5.0)
        return rankings

    return asyncio.run(run())


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE)
def test_stale_scores_are_ranked_and_forgotten(stale):
    scorer = Device(stale)
    (expected,) = answers(CpuScorer(), 1)
    (ranking,) = answers(scorer, 1)
    assert scorer.glances == [1]
    assert ranking.positions.tolist() == expected.positions.tolist()
    assert ranking.scores.tolist() == expected.scores.tolist()
    assert ranking.kernel == expected.kernel and ranking.timings_s["kernel"] < 1e6


def test_what_fails_in_it_keeps_nobody_from_the_answer(monkeypatch):
    scorer = Device(STALE["nan"])
    monkeypatch.setattr(_Flight, "glance", lambda flight: scorer.glances.append(1) or 1 / 0)
    (ranking,) = answers(scorer, 1)
    assert scorer.glances == [1] and len(ranking.positions) == 5 and scorer.launches == 1


def test_it_is_left_while_others_wait():
    scorer = Device(STALE["nan"])
    answers(scorer, 8)
    assert scorer.glances == [1] * 2  # the last two: one is launched when the other is waited for


def test_it_is_left_where_the_device_would_be_asked():
    scorer = Device(STALE["nan"])
    (ranking,) = answers(scorer, 1, explain=True)
    assert scorer.glances == [] and len(ranking.explanations) == 5
