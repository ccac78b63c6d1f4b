"""The highest rate at which the 99th percentile keeps 10 ms, and what the GPU does meanwhile."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import httpx
import msgspec
import numpy as np

from ..scrape import read_metrics, total
from .corpus import DIM
from .openloop import Outcome, Senders
from .rows import Report
from .wire import rerank

__all__ = ["saturate"]

_OBJECTIVE_S = 0.010
_PROCESSES = 4
_FIRST_PER_S, _GROWTH, _HALVINGS = 300.0, 1.4, 3
_STEP_S, _CONFIRM_S = 2.0, 5.0
_FLOOD_PER_S = 3000.0
_BODIES = 64
_TOP_N = 100


class _Step(NamedTuple):
    rate_per_s: float
    outcome: Outcome
    mean_batch: float
    busy_share: float

    @property
    def p99_s(self) -> float:
        return float(np.percentile(self.outcome.latency_s, 99)) if len(self.outcome.latency_s) else np.inf

    @property
    def kept(self) -> bool:
        return self.outcome.failed == 0 and self.p99_s <= _OBJECTIVE_S


def saturate(
    report: Report, client: httpx.Client, port: int, collection: str, documents: int, candidates: int
) -> None:
    """Add the knee's rows. Rates grow until one fails, the gap is halved, the best is measured again."""
    senders = Senders(_PROCESSES, partial(_bodies, collection, documents, candidates))
    try:
        low, high, rate = 0.0, np.inf, _FIRST_PER_S
        while high == np.inf:
            if _step(senders, client, port, rate, _STEP_S).kept:
                low, rate = rate, rate * _GROWTH
            else:
                high = rate
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if _step(senders, client, port, middle, _STEP_S).kept:
                low = middle
            else:
                high = middle
        # What was kept for a moment may not last: step down until it does.
        knee = _step(senders, client, port, low, _CONFIRM_S)
        while not knee.kept and knee.rate_per_s > 10:
            knee = _step(senders, client, port, 0.92 * knee.rate_per_s, _CONFIRM_S)
        flood = _step(senders, client, port, _FLOOD_PER_S, _STEP_S)
    finally:
        senders.close()
    name = f"open loop, {candidates:,} candidates"
    report.add(f"{name}: requests a second at p99 ≤ 10 ms", knee.rate_per_s, "1/s")
    report.add(f"{name}: p99 there", 1e3 * knee.p99_s, "ms")
    report.add(f"{name}: p50 there", 1e3 * float(np.median(knee.outcome.latency_s)), "ms")
    report.add(f"{name}: mean batch", knee.mean_batch, "")
    report.add(f"{name}: share of the time that the GPU's stream is busy", knee.busy_share, "")
    answered_per_s = len(flood.outcome.latency_s) / flood.outcome.took_s
    report.add(f"{name}, offered {_FLOOD_PER_S:,.0f} a second: answered", answered_per_s, "1/s")
    report.add(f"{name}, offered {_FLOOD_PER_S:,.0f} a second: failed", flood.outcome.failed, "")
    report.add(f"{name}, offered {_FLOOD_PER_S:,.0f} a second: mean batch", flood.mean_batch, "")


def _step(senders: Senders, client: httpx.Client, port: int, rate_per_s: float, seconds: float) -> _Step:
    before = read_metrics(client)
    outcome = senders.offer(port, rate_per_s, seconds)
    after = read_metrics(client)

    def more(name: str) -> float:
        return (total(after, name) or 0.0) - (total(before, name) or 0.0)

    requests, batches = more("maxsim_batch_requests_sum"), more("maxsim_batch_requests_count")
    busy_s = more("maxsim_stream_busy_seconds_total")
    step = _Step(rate_per_s, outcome, requests / max(batches, 1), busy_s / outcome.took_s)
    _say(step)
    return step


def _say(step: _Step) -> None:
    """A line of a step, with the stages that the service reported for its slowest answer."""
    latency_ms = 1e3 * step.outcome.latency_s
    if not len(latency_ms):
        return
    p50, p99 = np.percentile(latency_ms, (50, 99))
    meta = msgspec.msgpack.decode(step.outcome.slowest)["meta"]
    stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in meta["timings_ms"].items())
    print(
        f"  {step.rate_per_s:.0f}/s: p50 {p50:.2f}, p99 {p99:.2f}, worst {latency_ms.max():.2f} ms, of which "
        f"the engine had {meta['engine_ms']:.2f} ms ({stages})",
        file=sys.stderr,
        flush=True,
    )


def _bodies(collection: str, documents: int, candidates: int) -> Sequence[bytes]:
    rng = np.random.default_rng(6)
    return [
        rerank(
            collection,
            rng.standard_normal((32, DIM)).astype(np.float16),
            [f"d{number}" for number in rng.permutation(documents)[:candidates].tolist()],
            top_n=_TOP_N,
        )
        for _ in range(_BODIES)
    ]
