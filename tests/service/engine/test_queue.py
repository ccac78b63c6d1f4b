"""What becomes of a job that comes while the queue closes: it is taken, or refused, and never forgotten."""

import asyncio
import time
from types import SimpleNamespace

import numpy as np
import pytest

from maxsim_serve.engine import InlineCandidates
from maxsim_serve.engine.job import Job
from maxsim_serve.engine.queue import JobQueue
from maxsim_serve.errors import Draining
from maxsim_serve.metrics import Metrics

ROW = np.ones((1, 8), np.float32)


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def job(loop):
    return Job(ROW, InlineCandidates([ROW]), 1, False, time.perf_counter() + 60, loop.create_future())


def closing_at_ring(queue, taken):
    """The engine's thread closes the queue just as a job is put, and takes what it sees, or has before."""
    bell = queue._doorbell

    def ring():
        queue._doorbell = bell
        queue.close()
        if taken is not None:
            taken.append(queue.take())

    return SimpleNamespace(ring=ring, answer=bell.answer)


def test_a_job_that_nobody_will_take_is_refused(loop):
    metrics = Metrics()
    queue = JobQueue(4, 1.0, metrics)
    queue._doorbell = closing_at_ring(queue, None)
    with pytest.raises(Draining):
        queue.put(job(loop))
    assert not queue and queue.take() is None
    assert metrics.registry.get_sample_value("maxsim_rejected_total", {"reason": "draining"}) == 1


def test_a_job_that_is_taken_is_not(loop):
    metrics, taken = Metrics(), []
    queue = JobQueue(4, 1.0, metrics)
    queue._doorbell = closing_at_ring(queue, taken)
    put = job(loop)
    queue.put(put)
    assert taken == [put] and queue.take() is None
    assert not metrics.registry.get_sample_value("maxsim_rejected_total", {"reason": "draining"})


def test_what_waits_is_handed_out_after_the_end_in_its_order(loop):
    queue = JobQueue(4, 1.0, Metrics())
    jobs = [job(loop) for _ in range(4)]
    for one in jobs:
        queue.put(one)
    queue.close()
    with pytest.raises(Draining):
        queue.put(job(loop))
    assert [queue.take(), *queue.take_waiting(2), queue.take()] == jobs
    assert queue.take_waiting(2) == [] and queue.take() is None


def test_what_is_put_before_the_end_is_taken_however_late_that_is_seen(loop, monkeypatch):
    """The event loop puts a job and closes just after the engine's thread has found nothing."""
    queue, last = JobQueue(4, 1.0, Metrics()), job(loop)
    take_waiting = queue.take_waiting

    def found_nothing(most):
        taken = take_waiting(most)
        monkeypatch.setattr(queue, "take_waiting", take_waiting)
        queue.put(last)
        queue.close()
        return taken

    monkeypatch.setattr(queue, "take_waiting", found_nothing)
    assert queue.take() is last
    assert queue.take() is None
