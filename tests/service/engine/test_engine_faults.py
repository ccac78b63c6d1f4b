"""What the engine does when its device fails; the fake is the scorer alone, at the driver's edge."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from maxsim_serve.engine import CpuScorer, Engine, InlineCandidates, Ranking, choose_device, use_kernel_cache
from maxsim_serve.engine.scorer import Launched, Request, Scored
from maxsim_serve.errors import DeviceLost, InvalidInput, OutOfMemory
from maxsim_serve.metrics import Metrics

QUERY = np.ones((2, 16), np.float32)
STICKY = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronous"


class FaultyScorer(CpuScorer):
    """The CPU's, two batches deep as a GPU's is; raises the errors given, one a batch, at launch or later."""

    depth = 2
    device = torch.device("cuda", 0)

    def __init__(self, *errors: Exception | None, late: bool) -> None:
        self.errors = list(errors)
        self.late = late
        self.released = 0

    def launch(self, requests: Sequence[Request]) -> Launched:
        error = self.errors.pop(0) if self.errors else None
        if error is not None and not self.late:
            raise error
        return _Late(super().launch(requests), error)

    def release(self) -> None:
        self.released += 1


class _Late:
    def __init__(self, launched: Launched, error: Exception | None) -> None:
        self.launched, self.error = launched, error

    def glance(self) -> Scored | None:
        return self.launched.glance()

    def wait(self) -> Scored:
        if self.error is not None:
            raise self.error
        return self.launched.wait()


async def rank(engine: Engine) -> Ranking:
    return await engine.rank(QUERY, InlineCandidates([QUERY]), top_n=None, explain=False, deadline_s=5.0)


def make(scorer: FaultyScorer, metrics: Metrics, faults: list[DeviceLost]) -> Engine:
    return Engine(
        queue_depth=8, max_batch_tokens=100, retry_after_s=1.0, metrics=metrics, scorer=scorer,
        on_fault=faults.append,
    )  # fmt: skip


@pytest.mark.parametrize("late", [False, True], ids=["at launch", "while waiting"])
def test_without_memory_a_request_fails_and_the_next_one_works(late):
    scorer, metrics = FaultyScorer(torch.OutOfMemoryError("CUDA out of memory"), late=late), Metrics()

    async def body() -> None:
        engine = make(scorer, metrics, [])
        engine.start()
        with pytest.raises(OutOfMemory):
            await rank(engine)
        assert (await rank(engine)).scores.tolist() == [32.0]
        assert engine.ready
        await engine.drain(5.0)

    asyncio.run(body())
    assert scorer.released == 1
    assert metrics.registry.get_sample_value("maxsim_oom_total") == 1


@pytest.mark.parametrize("late", [False, True], ids=["at launch", "while waiting"])
def test_a_sticky_error_ends_the_engine_and_fails_all_that_wait(late):
    scorer, faults = FaultyScorer(None, RuntimeError(STICKY), late=late), []

    async def body() -> None:
        engine = make(scorer, Metrics(), faults)
        engine.start()
        await rank(engine)
        outcomes = await asyncio.gather(*(rank(engine) for _ in range(5)), return_exceptions=True)
        assert any(isinstance(outcome, DeviceLost) for outcome in outcomes)
        assert not engine.ready
        assert "illegal memory access" in (await engine.probe(5.0) or "")
        assert await engine.drain(5.0)

    asyncio.run(body())
    assert len(faults) == 1


def test_an_ordinary_error_fails_its_request_and_loses_no_device():
    faults: list[DeviceLost] = []

    async def body() -> None:
        engine = make(FaultyScorer(RuntimeError("shapes differ"), late=False), Metrics(), faults)
        engine.start()
        with pytest.raises(RuntimeError, match="shapes differ"):
            await rank(engine)
        await rank(engine)
        await engine.drain(5.0)

    asyncio.run(body())
    assert faults == []


def test_a_probe_scores_only_when_nothing_was_scored_for_long():
    scorer, metrics = FaultyScorer(None, RuntimeError(STICKY), late=True), Metrics()

    async def body() -> None:
        engine = make(scorer, metrics, [])
        engine.start()
        assert await engine.probe(60.0) is None
        assert metrics.registry.get_sample_value("maxsim_batch_requests_count") == 0
        await asyncio.sleep(0.25)
        assert await engine.probe(0.2) is None
        await asyncio.sleep(0.25)
        assert "illegal memory access" in (await engine.probe(0.2) or "")

    asyncio.run(body())
    assert metrics.registry.get_sample_value("maxsim_batch_requests_count") == 1


def test_a_gpu_that_is_asked_for_and_hidden_is_refused_and_auto_says_that_it_falls_back(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="CUDA_VISIBLE_DEVICES"):
        choose_device("cuda")
    chosen = choose_device("auto")
    assert chosen.fallback and chosen.device.type == "cpu" and "no CUDA GPU" in chosen.reason
    assert not choose_device("cpu").fallback


def test_kernels_of_a_cache_that_cannot_be_written_are_used_from_a_copy(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TRITON_CACHE_DIR", "before")
    use_kernel_cache(None)
    assert _cache() == "before"
    use_kernel_cache(tmp_path / "new")
    assert _cache() == str(tmp_path / "new")
    (tmp_path / "new" / "kernel").write_text("compiled")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    use_kernel_cache(tmp_path / "new")
    assert "Read-only file system" in caplog.text
    assert _cache() != str(tmp_path / "new")
    assert (Path(_cache()) / "kernel").read_text() == "compiled"


def _cache() -> str:
    return os.environ["TRITON_CACHE_DIR"]
