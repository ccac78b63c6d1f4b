"""The engine's thread: takes what waits, scores it as one work list, hands each request its ranking."""

import logging
import threading
import time
from collections.abc import Sequence

import torch

import maxsim
from maxsim.topk import order

from ..errors import OutOfMemory
from ..metrics import STAGES, Metrics
from .candidates import Resolved
from .job import Explanation, Job, Ranking
from .queue import JobQueue
from .worklist import Scored, score

__all__ = ["Runner"]

_log = logging.getLogger(__name__)


class Runner:
    """Owns the scoring. Nothing waits for company: a batch is what has queued up while the last one ran."""

    def __init__(self, queue: JobQueue, max_batch_tokens: int, metrics: Metrics) -> None:
        self._queue = queue
        self._max_batch_tokens = max_batch_tokens
        self._metrics = metrics
        self._stages = {stage: metrics.stage_duration.labels(stage) for stage in STAGES}
        self._thread = threading.Thread(target=self._run, name="maxsim-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """True once the thread has ended, that is, once the closed queue is empty."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._queue.take()) is not None:
            self._score(self._gather(job))

    def _gather(self, first: Job) -> list["_Work"]:
        """The first job and whatever waits behind it, up to `max_batch_tokens` document rows."""
        batch: list[_Work] = []
        tokens = 0
        job: Job | None = first
        while job is not None:
            taken = time.perf_counter()
            try:
                resolved = job.candidates.resolve()
            except Exception as error:
                job.deliver(error)
            else:
                timings_s = {"queue": taken - job.enqueued, "lookup": time.perf_counter() - taken}
                batch.append(_Work(job, resolved, timings_s))
                tokens += resolved.tokens
            job = self._queue.take_if_waiting() if tokens < self._max_batch_tokens else None
        return batch

    def _score(self, batch: Sequence["_Work"]) -> None:
        if not batch:
            return
        try:
            scored = score([work.job.query for work in batch], [work.resolved for work in batch])
        except Exception as error:
            self._recover(batch, error)
            return
        kernel = ",".join(sorted({name for name, _ in scored.launches})) or "none"
        for work, scores in zip(batch, scored.scores, strict=True):
            work.timings_s["kernel"] = scored.kernel_s
            try:
                ranking = _rank(work, scores, kernel)
            except Exception as error:
                work.job.deliver(error)
            else:
                work.job.deliver(ranking)
        self._record(batch, scored)

    def _recover(self, batch: Sequence["_Work"], error: Exception) -> None:
        """A work list failed: give each of its requests a run of its own, so that only the culprit fails."""
        if len(batch) > 1:
            for work in batch:
                self._score([work])
            return
        if _is_out_of_memory(error):
            self._metrics.oom.inc()
            error = OutOfMemory(f"no memory to score {batch[0].resolved.tokens} document tokens: {error}")
        else:
            _log.exception("scoring failed", exc_info=error)
        batch[0].job.deliver(error)

    def _record(self, batch: Sequence["_Work"], scored: Scored) -> None:
        """Count, now that nobody waits for it any more."""
        self._metrics.batch_requests.observe(len(batch))
        self._metrics.batch_pairs.observe(sum(work.resolved.count for work in batch))
        self._stages["kernel"].observe(scored.kernel_s)
        for kernel, dtype in scored.launches:
            self._metrics.kernel_launches.labels(kernel, dtype).inc()
        for work in batch:
            for stage, seconds in work.timings_s.items():
                if stage != "kernel":  # of the whole batch, and counted once
                    self._stages[stage].observe(seconds)
            self._metrics.rerank_candidates.observe(work.resolved.count)
            self._metrics.missing_ids.inc(len(work.resolved.missing))


class _Work:
    """A job whose candidates are resolved."""

    __slots__ = ("job", "resolved", "timings_s")

    def __init__(self, job: Job, resolved: Resolved, timings_s: dict[str, float]) -> None:
        self.job = job
        self.resolved = resolved
        self.timings_s = timings_s


def _rank(work: _Work, scores: torch.Tensor, kernel: str) -> Ranking:
    started = time.perf_counter()
    resolved, job = work.resolved, work.job
    found = resolved.count - len(resolved.missing)
    # Missing positions hold −∞, which nothing stored scores: the best `found` are those that exist.
    wanted = found if job.top_n is None else min(job.top_n, found)
    by_position = scores.numpy()
    positions = order(by_position, wanted)
    ids = None if resolved.ids is None else [resolved.ids[i] for i in positions.tolist()]
    explanations = _explain(job.query, resolved, positions.tolist()) if job.explain else None
    work.timings_s["topk"] = time.perf_counter() - started
    return Ranking(
        positions=positions,
        scores=by_position[positions],
        ids=ids,
        missing=resolved.missing,
        candidates=resolved.count,
        document_tokens=resolved.tokens,
        timings_s=work.timings_s,
        kernel=kernel,
        explanations=explanations,
    )


def _explain(query: torch.Tensor, resolved: Resolved, positions: Sequence[int]) -> list[Explanation]:
    spans = {}
    wanted = set(positions)
    for part in resolved.parts:
        for start, length, position in zip(
            part.starts.tolist(), part.lengths.tolist(), part.positions.tolist(), strict=True
        ):
            if position in wanted:
                spans[position] = part.tokens[start : start + length]
    explained = [maxsim.explain(query, spans[position]) for position in positions]
    return [Explanation(e.tokens.numpy(), e.similarities.numpy()) for e in explained]


def _is_out_of_memory(error: Exception) -> bool:
    # torch's CPU allocator raises a plain RuntimeError.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in str(error)
