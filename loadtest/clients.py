"""Client processes that share an open loop, and what their outcomes say."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from openloop import REASONS_MAX, Load, Outcome, run
from scenarios import messages

__all__ = ["Clients", "percentiles_ms", "summary"]


class Clients:
    """Client processes, kept from one load to the next: `with Clients(1) as clients: clients.offer(load)`."""

    _HEAD_START_S = 0.3

    def __init__(self, processes: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pools = [ProcessPoolExecutor(1, spawn) for _ in range(processes)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools:
            pool.shutdown()

    def offer(self, load: Load) -> Outcome:
        """Send the load and wait for its answers; requests in the order of their intended times."""
        for ready in [pool.submit(_prepare, load) for pool in self._pools]:
            ready.result()
        starts_s = time.monotonic() + self._HEAD_START_S
        share = replace(load, starts_s=starts_s, step=len(self._pools))
        share = replace(share, unanswered_max=-(-load.unanswered_max // len(self._pools)))
        running = [pool.submit(run, replace(share, first=i)) for i, pool in enumerate(self._pools)]
        return _joined([each.result() for each in running])


def _prepare(load: Load) -> None:
    """Make the messages, which `run` in the same process then finds made."""
    messages(load.scenario, load.collection)


def _joined(parts: list[Outcome]) -> Outcome:
    order = np.argsort(np.concatenate([part.intended_s for part in parts]))
    rows = {
        name: np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("intended_s", "sent_s", "done_s", "status", "due", "upsert")
    }
    return Outcome(
        **rows,
        saturated=any(part.saturated for part in parts),
        client_cpu_s=sum(part.client_cpu_s for part in parts),
        reasons=[reason for part in parts for reason in part.reasons][:REASONS_MAX],
    )


def summary(load: Load, outcome: Outcome, warm_up_s: float) -> dict[str, Any]:
    """Figures of a load; requests of the first `warm_up_s` count for nothing but failures."""
    due, answered = outcome.due, ~np.isnan(outcome.done_s)
    counted = due & (outcome.intended_s >= outcome.intended_s[0] + warm_up_s)
    failed = due & (outcome.status != 200)
    latency_ms = (outcome.done_s - outcome.intended_s) * 1e3
    lag_ms = ((outcome.sent_s - outcome.intended_s) * 1e3)[counted & ~np.isnan(outcome.sent_s)]
    last_s = float(np.nanmax(outcome.done_s)) if answered.any() else float("nan")
    figures: dict[str, Any] = {
        "rate_per_s": load.rate_per_s,
        "requests": int(due.sum()),
        "answered_per_s": float(answered.sum() / (last_s - outcome.intended_s[0])) if answered.any() else 0.0,
        "failed": int(failed.sum()),
        "reasons": outcome.reasons,
        "saturated": outcome.saturated,
        "rerank_ms": percentiles_ms(latency_ms[counted & answered & ~outcome.upsert]),
        "send_lag_p99_ms": float(np.percentile(lag_ms, 99)) if len(lag_ms) else None,
        "client_cpu_s": outcome.client_cpu_s,
    }
    if load.scenario.upsert_share:
        figures["upsert_ms"] = percentiles_ms(latency_ms[counted & answered & outcome.upsert])
    return figures


def percentiles_ms(latency_ms: np.ndarray) -> dict[str, float] | None:
    """None where nothing was counted."""
    if not len(latency_ms):
        return None
    p50, p90, p99 = np.percentile(latency_ms, (50, 90, 99))
    return {"p50": float(p50), "p90": float(p90), "p99": float(p99), "max": float(latency_ms.max())}
