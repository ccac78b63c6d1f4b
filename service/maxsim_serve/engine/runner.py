"""The engine's thread: takes what waits, scores it as one work list, hands each request its ranking."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

import maxsim

from ..errors import DeviceLost, OutOfMemory
from ..metrics import DEVICE_STAGES, Metrics
from .faults import is_device_lost, is_out_of_memory
from .intake import Intake
from .job import Job, Ranking, deliver
from .queue import JobQueue
from .ranking import Work, rank_all
from .scorer import Launched, Request, Scored, Scorer

__all__ = ["Runner"]

_log = logging.getLogger(__name__)


class Runner:
    """Owns the scoring. Nothing waits for company: a batch is what has queued up while the last one ran.

    Where the scorer allows two batches in flight, one is looked up and launched while the device works on
    the other; each is answered in its turn. After an error that the device does not recover from, every
    request fails, the thread ends, and `on_fault` is called with that error.
    """

    def __init__(
        self,
        queue: JobQueue,
        scorer: Scorer,
        max_batch_tokens: int,
        metrics: Metrics,
        on_fault: Callable[[DeviceLost], None],
    ) -> None:
        self._queue = queue
        self._scorer = scorer
        self._intake = Intake(queue, max_batch_tokens)
        self._metrics = metrics
        # Looked up once, for kernels, dtypes and directions are few.
        self._moved = cache(metrics.stream_bytes.labels)
        self._launches = cache(metrics.kernel_launches.labels)
        self._on_fault = on_fault
        self._fault: DeviceLost | None = None
        self._last_success = time.perf_counter()
        self._compilations = maxsim.compilations()
        self._thread = threading.Thread(target=self._run, name="maxsim-engine", daemon=True)

    def start(self) -> None:
        self._compilations = maxsim.compilations()
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """True once the thread has ended, that is, once the closed queue is empty."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def fault(self) -> DeviceLost | None:
        """Why nothing will be scored any more."""
        return self._fault

    @property
    def idle_s(self) -> float:
        """Seconds since a batch was last scored."""
        return time.perf_counter() - self._last_success

    def _run(self) -> None:
        try:
            self._scorer.bind()
        except Exception as error:
            self._lose(error)
        flying: _Flight | None = None
        while self._fault is None:
            batch = self._intake.gather(wait=flying is None)
            if not batch and flying is None:
                return
            launched = self._launch(batch) if batch else None
            if flying is not None:
                self._finish(flying)
            flying = launched
            if flying is not None and self._scorer.depth == 1:
                self._finish(flying)
                flying = None
        if flying is not None:
            self._fail(flying.batch, self._fault)
        if self._intake.held:
            self._fail(list(self._intake.held), self._fault)
        self._queue.close()
        while (job := self._queue.take()) is not None:
            job.deliver(self._fault)

    def _launch(self, batch: Sequence[Work]) -> "_Flight":
        try:
            requests = [Request(work.job.query, work.resolved, work.wanted) for work in batch]
            return _Flight(batch, self._scorer.launch(requests))
        except Exception as error:
            return _Flight(batch, error)

    def _finish(self, flight: "_Flight") -> None:
        """Wait for a batch and answer it. No other that was launched before it is in flight."""
        batch, launched = flight.batch, flight.launched
        try:
            if isinstance(launched, Exception):
                raise launched
            if not self._queue:
                self._rehearse(batch, launched)
            scored = launched.wait()
            self._last_success = time.perf_counter()
            outcomes = self._rank(batch, scored)
        except Exception as error:
            self._recover(batch, error)
            return
        ranked: list[tuple[Job, Ranking | BaseException]] = []
        failed: list[tuple[Work, Exception]] = []
        for work, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                failed.append((work, outcome))
            else:
                ranked.append((work.job, outcome))
        if ranked:
            deliver(ranked)
        for work, cause in failed:
            self._recover([work], cause)
        self._record(batch, scored)

    def _rehearse(self, batch: Sequence[Work], launched: Launched) -> None:
        """Rank scores of before while the device works and nothing else waits: when it is done, what ranks
        its scores is in the caches, and takes half as long."""
        if any(work.job.explain for work in batch):  # that would ask the device
            return
        with suppress(Exception):  # the device must be waited for in any case
            scored = launched.glance()
            if scored is not None:
                self._rank(batch, scored)

    def _rank(self, batch: Sequence[Work], scored: Scored) -> Sequence[Ranking | Exception]:
        kernel = ",".join(sorted({name for name, _ in scored.launches})) or "none"
        for work in batch:
            work.timings_s.update(scored.stages_s)
        return rank_all(batch, scored.results, kernel, self._scorer)

    def _recover(self, batch: Sequence[Work], error: Exception) -> None:
        """A work list failed: give each of its requests a run of its own, so that only the culprit fails."""
        if self._fault is not None or is_device_lost(error):
            self._fail(batch, self._fault or self._lose(error))
            return
        if is_out_of_memory(error):
            # The traceback's frames hold what the batch had allocated.
            error = error.with_traceback(None)
            self._scorer.release()
        if len(batch) > 1:
            for work in batch:
                self._finish(self._launch([work]))
            return
        if is_out_of_memory(error):
            self._metrics.oom.inc()
            error = OutOfMemory(f"no memory to score {batch[0].resolved.tokens} document tokens: {error}")
        else:
            _log.exception("scoring failed", exc_info=error)
        batch[0].job.deliver(error)

    def _fail(self, batch: Sequence[Work], error: Exception) -> None:
        deliver([(work.job, error) for work in batch])

    def _lose(self, error: Exception) -> DeviceLost:
        _log.critical("the device is lost; the process must be started again", exc_info=error)
        self._fault = DeviceLost(f"the device failed: {str(error).splitlines()[0]}")
        self._on_fault(self._fault)
        return self._fault

    def _record(self, batch: Sequence[Work], scored: Scored) -> None:
        """Count, now that nobody waits for it any more."""
        counts = [work.resolved.count for work in batch]
        self._metrics.batch_requests.observe(len(batch))
        self._metrics.batch_pairs.observe(sum(counts))
        for stage, seconds in scored.stages_s.items():  # of the whole batch, and counted once
            self._metrics.stage_of(stage).observe(seconds)
        self._metrics.stream_busy.inc(sum(scored.stages_s.get(stage, 0.0) for stage in DEVICE_STAGES))
        for direction, moved_bytes in scored.moved_bytes.items():
            self._moved(direction).inc(moved_bytes)
        self._metrics.graph_replays.inc(scored.graphs)
        compiled = maxsim.compilations()
        if compiled > self._compilations:
            self._metrics.kernel_compilations.labels("live").inc(compiled - self._compilations)
            self._compilations = compiled
        for kernel, dtype in scored.launches:
            self._launches(kernel, str(dtype).removeprefix("torch.")).inc()
        for stage in batch[0].timings_s.keys() - scored.stages_s.keys():
            self._metrics.stage_of(stage).observe_all([work.timings_s[stage] for work in batch])
        self._metrics.rerank_candidates.observe_all(counts)
        self._metrics.missing_ids.inc(sum(len(work.resolved.missing) for work in batch))


class _Flight:
    """A batch that was launched, or the error that kept it from being."""

    __slots__ = ("batch", "launched")

    def __init__(self, batch: Sequence[Work], launched: Launched | Exception) -> None:
        self.batch = batch
        self.launched = launched
