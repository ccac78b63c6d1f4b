"""What of the queue comes next: looked up, as much as a batch takes."""

import math
import time
from collections import deque

from .candidates import Resolved, resolve, resolve_all
from .job import Job
from .queue import JobQueue
from .ranking import Work

__all__ = ["Intake"]

# Query rows that count as one in `max_batch_tokens`: those of a text query.
_QUERY_ROWS = 32
# Document rows that count as one where they are in a GPU's memory, which reads a million in a tenth of a
# millisecond: there the host is what takes time, and less of it the more requests share a batch.
_RESIDENT_ROWS = 4
# What makes one part in so many of a full batch, or more, goes by itself.
_LARGE_PART = 4
# Requests that are looked up together. What work they are is known then: some may have to wait for the next
# batch.
_TOGETHER = 64


class Intake:
    """Makes batches of what waits, in the order of its arrival. For the engine's thread.

    A batch takes up to `max_batch_tokens` of work; how much a request is shows when it is looked up.
    """

    def __init__(self, queue: JobQueue, max_batch_tokens: int) -> None:
        self._queue = queue
        self._max_batch_tokens = max_batch_tokens
        self._tokens_each = 1.0  # of a request, in the last batch
        self.held: deque[Work] = deque()  # what is looked up already and comes next

    def gather(self, *, wait: bool) -> list[Work]:
        """What waits, up to `max_batch_tokens` of work; nothing if there is none now or, to `wait`, none any
        more.

        A request that is a good part of that goes by itself: those before it should not wait for it.
        """
        large_tokens = self._max_batch_tokens // _LARGE_PART
        batch: list[Work] = []
        tokens = 0
        while tokens < self._max_batch_tokens:
            if not self.held:
                first = wait and not batch
                if not (first or self._queue) or not self._take(self._max_batch_tokens - tokens, wait=first):
                    break
                continue
            more_tokens = _tokens(self.held[0])
            if batch and more_tokens >= large_tokens:
                break
            batch.append(self.held.popleft())
            tokens += more_tokens
            if more_tokens >= large_tokens:
                break
        if batch:
            self._tokens_each = tokens / len(batch) or 1.0
        return batch

    def _take(self, room_tokens: int, *, wait: bool) -> bool:
        """Look up what waits, about as much as there is room for, and hold it but for what cannot be looked
        up. False where nothing waits."""
        jobs: list[Job] = []
        if wait:
            first = self._queue.take()
            if first is None:
                return False
            jobs.append(first)
        if self._queue:
            most = min(_TOGETHER, math.ceil(room_tokens / self._tokens_each))  # going by the last batch
            jobs += self._queue.take_waiting(most - len(jobs))
        if not jobs:
            return False
        taken = time.perf_counter()
        if len(jobs) == 1:  # sooner done without lists
            self._hold(jobs[0], resolve(jobs[0].candidates), taken, time.perf_counter())
            return True
        found = resolve_all([job.candidates for job in jobs])
        ended = time.perf_counter()
        for job, resolved in zip(jobs, found, strict=True):
            self._hold(job, resolved, taken, ended)
        return True

    def _hold(self, job: Job, resolved: Resolved | Exception, taken: float, ended: float) -> None:
        """The job was looked up from `taken` until `ended`."""
        if isinstance(resolved, Exception):
            job.deliver(resolved)
            return
        timings_s = {"queue": taken - job.enqueued, "lookup": ended - taken}
        self.held.append(Work(job, resolved, timings_s, taken))


def _tokens(work: Work) -> int:
    """Document rows to score; a long query makes as much work of each as several short ones, and several in
    a GPU's memory as much as one elsewhere."""
    tokens = work.resolved.tokens * -(-len(work.job.query) // _QUERY_ROWS)
    parts = work.resolved.parts
    resident = parts and parts[0].host_tokens is None and parts[0].tokens.is_cuda
    return tokens // _RESIDENT_ROWS if resident else tokens
