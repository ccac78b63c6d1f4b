"""Where the engine's thread waits: no ring is missed, and who waits lets others run."""

import asyncio
import threading
import time
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maxsim_serve import app, settings
from maxsim_serve.engine import Engine, InlineCandidates, doorbell
from maxsim_serve.engine.doorbell import Doorbell, SleepyDoorbell
from maxsim_serve.metrics import Metrics

_KINDS = [
    pytest.param(lambda: Doorbell(0.0), id="asleep"),
    pytest.param(lambda: Doorbell(60.0), id="awake"),
    pytest.param(lambda: SleepyDoorbell(60.0), id="not-compiled"),
]


def test_the_compiled_one_is_used() -> None:
    assert doorbell.compiled
    assert Doorbell is not SleepyDoorbell


@pytest.mark.parametrize("make", _KINDS)
def test_any_number_of_rings_is_answered_once(make) -> None:
    bell = make()
    for _ in range(3):
        bell.ring()
    bell.answer()
    waiting = threading.Thread(target=bell.answer)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    bell.ring()
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize("make", _KINDS)
def test_no_ring_is_missed(make) -> None:
    """Who rings after each change, and who looks after each ring, miss none of them."""
    bell, made, seen, rounds = make(), deque(), [], 20_000

    def look() -> None:
        while len(seen) < rounds:
            bell.answer()
            while made:
                seen.append(made.popleft())

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(rounds):
        made.append(number)
        bell.ring()
        if number % 64 == 0:
            time.sleep(1e-5)  # now and then it is asleep
    looking.join(30)
    assert seen == list(range(rounds))


@pytest.mark.parametrize("awake_s", [0.0, 0.2])
def test_a_waiter_is_awake_for_as_long_as_asked_and_then_sleeps(awake_s: float) -> None:
    bell, used_s = Doorbell(awake_s), []

    def answer() -> None:
        started = time.thread_time()
        bell.answer()
        used_s.append(time.thread_time() - started)

    waiter = threading.Thread(target=answer)
    waiter.start()
    turns, end = 0, time.perf_counter() + 0.8
    while time.perf_counter() < end:  # Python runs here meanwhile: the waiter holds no lock of it
        turns += 1
        time.sleep(0.001)
    bell.ring()
    waiter.join(10)
    assert turns > 100
    assert awake_s / 4 <= used_s[0] <= awake_s + 0.1


@pytest.mark.parametrize("awake_s", [0.0, 0.3])
def test_the_engines_thread_is_awake_for_as_long_as_it_is_told(awake_s: float) -> None:
    row = np.ones((1, 16), np.float32)

    async def used_s() -> float:
        engine = Engine(
            queue_depth=1, max_batch_tokens=100, retry_after_s=1.0, metrics=Metrics(), awake_s=awake_s
        )
        engine.start()
        await engine.rank(row, InlineCandidates([row]), top_n=1, explain=False, deadline_s=5.0)
        started = time.process_time()
        await asyncio.sleep(0.8)
        used = time.process_time() - started
        await engine.drain(5.0)
        return used

    assert awake_s / 4 <= asyncio.run(used_s()) <= awake_s + 0.1


@pytest.mark.parametrize(("device", "awake_s"), [("cpu", 0.0), ("cuda", 0.25)])
def test_it_sleeps_at_once_where_the_cores_are_what_scores(monkeypatch, device: str, awake_s: float) -> None:
    told = {}

    class Told(Exception):
        pass

    def engine(**options: object) -> None:
        told.update(options)
        raise Told

    service = app.Service(settings.load(environ={}, flags={"device": "cpu", "awake_s": 0.25}), lambda: None)
    monkeypatch.setattr(service, "_device", SimpleNamespace(device=torch.device(device)))
    monkeypatch.setattr(service, "_load", lambda: (None, None, None))
    monkeypatch.setattr(app, "Engine", engine)
    with pytest.raises(Told):
        asyncio.run(service._open())
    assert told["awake_s"] == awake_s
