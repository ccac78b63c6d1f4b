"""The engine's face towards the API: `await engine.rank(...)`."""

import asyncio
import time

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..metrics import Metrics
from ..store import normalized
from .candidates import Candidates
from .job import Job, Ranking
from .queue import JobQueue
from .runner import Runner

__all__ = ["Engine"]


class Engine:
    """One queue and one scoring thread. Waiting requests are scored together, as one work list."""

    def __init__(
        self, *, queue_depth: int, max_batch_tokens: int, retry_after_s: float, metrics: Metrics
    ) -> None:
        self._queue = JobQueue(queue_depth, retry_after_s, metrics)
        self._runner = Runner(self._queue, max_batch_tokens, metrics)
        self._draining = False

    def start(self) -> None:
        self._runner.start()

    @property
    def ready(self) -> bool:
        """Whether the scoring thread runs and takes work."""
        return self._runner.alive and not self._draining

    async def rank(
        self,
        query: NDArray[np.generic],
        candidates: Candidates,
        *,
        top_n: int | None,
        explain: bool,
        deadline_s: float,
    ) -> Ranking:
        """The best `top_n` candidates (None: all of them) for a finite query `[Lq, dim]`.

        Cancelling the caller drops the request before it is scored. Raises `InvalidInput` for a query of
        another width, `QueueFull`, `DeadlineExceeded`, `Draining` and `OutOfMemory`.
        """
        if query.shape[1] != candidates.dim:
            raise InvalidInput(
                f"query has {query.shape[1]} columns, the documents have {candidates.dim}; "
                "encode both with the same model",
                param="query",
                code="dimension_mismatch",
            )
        rows = (
            normalized(query, field="query")
            if candidates.normalize
            else np.array(query, dtype=np.float32, order="C")
        )
        job = Job(
            query=torch.from_numpy(rows),
            candidates=candidates,
            top_n=top_n,
            explain=explain,
            deadline=time.perf_counter() + deadline_s,
            future=asyncio.get_running_loop().create_future(),
        )
        self._queue.put(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            job.abandoned = True
            raise

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing more, finish what waits. True if all of it was done in time."""
        self._draining = True
        self._queue.close()
        return await asyncio.to_thread(self._runner.join, timeout_s)
