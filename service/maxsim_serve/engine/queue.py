"""The bounded queue between the event loop and the engine's thread. It alone holds the waiting jobs."""

import time
from collections import deque
from contextlib import suppress

from ..errors import DeadlineExceeded, Draining, QueueFull
from ..metrics import Metrics
from .doorbell import Doorbell
from .job import Job

__all__ = ["JobQueue"]


class JobQueue:
    """First in, first out. A job whose client left or whose deadline passed is dropped in its turn.

    The event loop puts and closes. The engine's thread takes, and closes when the device is lost; where
    nothing is left it stays awake for `awake_s` before it sleeps.
    """

    def __init__(self, depth: int, retry_after_s: float, metrics: Metrics, awake_s: float = 0.0) -> None:
        self._depth = depth
        self._retry_after_s = retry_after_s
        self._metrics = metrics
        self._jobs: deque[Job] = deque()
        self._doorbell = Doorbell(awake_s)
        self._closed = False
        metrics.queue_depth.set_function(lambda: float(len(self._jobs)))
        metrics.queue_oldest_age.set_function(self._oldest_age_s)

    def __bool__(self) -> bool:
        """Whether any job waits."""
        return bool(self._jobs)

    def put(self, job: Job) -> None:
        """Raises `QueueFull` past the depth and `Draining` once closed."""
        if self._closed:
            raise self._draining()
        if len(self._jobs) >= self._depth:
            self._metrics.rejected.labels("queue_full").inc()
            raise QueueFull(
                f"{self._depth} requests are waiting already (setting queue_depth); try again later",
                retry_after_s=self._retry_after_s,
            )
        self._jobs.append(job)
        self._doorbell.ring()
        if self._closed:  # meanwhile, by the engine's thread, which may have looked for the last time
            with suppress(ValueError):  # type: ignore[unreachable]  # it has taken the job
                self._jobs.remove(job)
                raise self._draining()

    def take(self) -> Job | None:
        """The next job that is still wanted; blocks until there is one. None once closed and empty."""
        while True:
            closed = self._closed  # before looking: nothing is put after it
            if jobs := self.take_waiting(1):
                return jobs[0]
            if closed:
                return None
            self._doorbell.answer()

    def take_waiting(self, most: int) -> list[Job]:
        """The next jobs that are still wanted; none if none waits now."""
        jobs: list[Job] = []
        now = time.perf_counter()
        while self._jobs and len(jobs) < most:
            job = self._jobs.popleft()
            if self._still_wanted(job, now):
                jobs.append(job)
        return jobs

    def close(self) -> None:
        """Accept nothing more; what waits is still handed out."""
        self._closed = True
        self._doorbell.ring()

    def _draining(self) -> Draining:
        self._metrics.rejected.labels("draining").inc()
        return Draining("the service is stopping; send the request to another one")

    def _still_wanted(self, job: Job, now: float) -> bool:
        if job.abandoned:
            self._metrics.rejected.labels("abandoned").inc()
            return False
        if now > job.deadline:
            self._metrics.rejected.labels("deadline").inc()
            job.deliver(
                DeadlineExceeded(
                    "the request waited longer than deadline_s before it could be scored",
                    retry_after_s=self._retry_after_s,
                )
            )
            return False
        return True

    def _oldest_age_s(self) -> float:
        try:
            return time.perf_counter() - self._jobs[0].enqueued
        except IndexError:
            return 0.0
