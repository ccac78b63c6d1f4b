"""Where the engine's thread waits: each ring lets one go on, and who waits lets others run."""

import threading
import time

import pytest

from maxsim_serve.engine import doorbell
from maxsim_serve.engine.doorbell import Doorbell, SleepyDoorbell

_KINDS = [
    pytest.param(lambda: Doorbell(0.0), id="asleep"),
    pytest.param(lambda: Doorbell(60.0), id="awake"),
    pytest.param(lambda: SleepyDoorbell(60.0), id="not-compiled"),
]


def test_the_compiled_one_is_used() -> None:
    assert doorbell.compiled
    assert Doorbell is not SleepyDoorbell


@pytest.mark.parametrize("make", _KINDS)
def test_rings_are_counted(make) -> None:
    bell = make()
    for _ in range(3):
        bell.ring()
    for _ in range(3):
        bell.answer()
    waiting = threading.Thread(target=bell.answer)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    bell.ring()
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize("make", _KINDS)
def test_each_ring_lets_one_waiter_go_on(make) -> None:
    bell, passed = make(), []

    def answer(number: int) -> None:
        for _ in range(500):
            bell.answer()
            passed.append(number)

    waiters = [threading.Thread(target=answer, args=[number]) for number in range(3)]
    for waiter in waiters:
        waiter.start()
    for _ in range(1499):
        bell.ring()
    deadline = time.monotonic() + 20
    while len(passed) < 1499 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(passed) == 1499
    assert sum(waiter.is_alive() for waiter in waiters) == 1
    bell.ring()
    for waiter in waiters:
        waiter.join(10)
    assert sorted(passed) == [0] * 500 + [1] * 500 + [2] * 500


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
