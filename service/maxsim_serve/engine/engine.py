"""The engine's face towards the API: `await engine.rank(...)`."""

import asyncio
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceLost, InvalidInput, ServiceError
from ..metrics import Metrics
from ..store import normalized
from .candidates import Candidates, InlineCandidates
from .job import Job, Ranking
from .queue import JobQueue
from .runner import Runner
from .scorer import SHORT_QUERY_BYTES, Scorer
from .worklist import CpuScorer

__all__ = ["Engine"]

# The service warms this width up, whatever is stored.
_PROBE_DIM = 128
_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)


class Engine:
    """One queue and one scoring thread. Waiting requests are scored together, as one work list."""

    def __init__(
        self,
        *,
        queue_depth: int,
        max_batch_tokens: int,
        retry_after_s: float,
        metrics: Metrics,
        scorer: Scorer | None = None,
        on_fault: Callable[[DeviceLost], None] = lambda fault: None,
        awake_s: float = 0.0,
    ) -> None:
        """`scorer` owns the device, the CPU where there is none. `on_fault` is called, on the engine's
        thread, when the device is lost: nothing will be scored any more. That thread stays awake for
        `awake_s` when it has nothing to do, at the cost of a core."""
        self._scorer = scorer if scorer is not None else CpuScorer()
        self._queue = JobQueue(queue_depth, retry_after_s, metrics, awake_s)
        self._runner = Runner(self._queue, self._scorer, max_batch_tokens, metrics, on_fault)
        self._draining = False

    def start(self) -> None:
        self._runner.start()

    @property
    def ready(self) -> bool:
        """Whether the scoring thread runs and takes work."""
        return self._runner.alive and not self._draining and self._runner.fault is None

    async def probe(self, after_s: float) -> str | None:
        """Why the device does not score, None if it does. One that has scored nothing for `after_s` gets
        one small document to score, and as many seconds for it. A CPU is not asked."""
        if self._runner.fault is not None:
            return self._runner.fault.message
        if self._scorer.device.type == "cpu" or self._runner.idle_s < after_s:
            return None
        row = np.ones((1, _PROBE_DIM), np.float32)
        try:
            async with asyncio.timeout(after_s):
                await self.rank(row, InlineCandidates([row]), top_n=1, explain=False, deadline_s=after_s)
        except TimeoutError:
            return f"the device has scored nothing for {after_s:g} s"
        except ServiceError as error:
            return error.message
        return None

    async def rank(
        self,
        query: NDArray[np.generic],
        candidates: Candidates,
        *,
        top_n: int | None,
        explain: bool,
        deadline_s: float,
    ) -> Ranking:
        """The best `top_n` candidates (None: all of them) for a finite query `[Lq, dim]`, which nobody writes
        to meanwhile.

        Cancelling the caller drops the request before it is scored. Raises `InvalidInput` for a query of
        another width, `QueueFull`, `DeadlineExceeded`, `Draining`, `OutOfMemory` and `DeviceLost`.
        """
        if query.shape[1] != candidates.dim:
            raise InvalidInput(
                f"query has {query.shape[1]} columns, the documents have {candidates.dim}; "
                "encode both with the same model",
                param="query",
                code="dimension_mismatch",
            )
        if candidates.normalize:
            query = normalized(query, field="query")
        # Halves stay as they are: a GPU wants them so. int8 and float64 become float32.
        dtype = _HALF if query.dtype == _HALF else _SINGLE
        if query.dtype != dtype or query.nbytes >= SHORT_QUERY_BYTES:
            query = self._scorer.placed(query, dtype)
        job = Job(
            query=query,
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
