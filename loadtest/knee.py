"""The knee of a scenario: the highest rate at which its p99 keeps the objective."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx
from clients import Clients, summary
from observe import cpu_s, rss, stages_ms
from openloop import Load
from scenarios import CollectionPlan, Scenario, messages
from target import Target

from maxsim_serve.cli.scrape import read_metrics

__all__ = ["Steps", "find_knee", "guess_per_s", "measure", "passes"]

_WARM_UP_S = 0.5
_UNANSWERED_MIN = 64
_UNANSWERED_MAX = 512  # select() in the client takes 1,024 files


@dataclass(frozen=True)
class Steps:
    """How a knee is sought: up a ladder of rates until one fails, then by halves.

    `ladder` is in parts of what one client gets; past its end rates grow by `growth`. A step lasts `step_s`,
    or up to `stretch_max` times that for `requests_min` requests. The halving stops at a gap of `gap`.
    """

    step_s: float = 2.5
    requests_min: int = 50
    stretch_max: float = 2.0
    confirm_s: float = 8.0
    ladder: tuple[float, ...] = (0.3, 0.6, 0.9)
    growth: float = 1.3
    gap: float = 0.06
    rungs_max: int = 16
    failures_max: int = 2
    halvings_max: int = 5
    confirmations_max: int = 5
    back_off: float = 0.92

    def duration_s(self, rate_per_s: float) -> float:
        return min(max(self.step_s, self.requests_min / rate_per_s), self.stretch_max * self.step_s)


def passes(figures: dict[str, Any], objective_p99_ms: float) -> bool:
    """Everything was answered 200, sending never stopped, and the 99th percentile kept the objective."""
    if figures["failed"] or figures["saturated"] or figures["rerank_ms"] is None:
        return False
    return bool(figures["rerank_ms"]["p99"] <= objective_p99_ms)


def guess_per_s(target: Target, scenario: Scenario, collection: CollectionPlan, seconds: float) -> float:
    """Reranks a second that one client gets, asking again after each answer."""
    head, _, body = messages(scenario, collection)[0][0].partition(b"\r\n\r\n")
    path = head.split()[1].decode()
    headers = {"content-type": f"application/{scenario.form}", "accept": f"application/{scenario.form}"}
    with httpx.Client(base_url=target.url, timeout=60) as client:
        client.post(path, content=body, headers=headers).raise_for_status()
        started, count = time.monotonic(), 0
        while time.monotonic() - started < seconds:
            client.post(path, content=body, headers=headers).raise_for_status()
            count += 1
        return count / (time.monotonic() - started)


def measure(
    clients: Clients,
    target: Target,
    scenario: Scenario,
    collection: CollectionPlan,
    rate_per_s: float,
    duration_s: float,
) -> dict[str, Any]:
    """The figures of one rate: the client's, and what the service said of itself meanwhile."""
    expected = 2 * rate_per_s * scenario.objective_p99_ms / 1e3
    load = Load(
        port=target.port,
        scenario=scenario,
        collection=collection,
        rate_per_s=rate_per_s,
        duration_s=duration_s + _WARM_UP_S,
        unanswered_max=min(max(_UNANSWERED_MIN, math.ceil(expected)), _UNANSWERED_MAX),
    )
    with httpx.Client(base_url=target.url, timeout=60) as client:
        before, cpu_before_s, started = read_metrics(client), cpu_s(target.pid), time.monotonic()
        outcome = clients.offer(load)
        took_s, cpu_after_s = time.monotonic() - started, cpu_s(target.pid)
        stages = stages_ms(before, read_metrics(client))
    figures = summary(load, outcome, _WARM_UP_S)
    used = None if cpu_before_s is None or cpu_after_s is None else (cpu_after_s - cpu_before_s) / took_s
    figures |= {"service_cores": used, "client_cores": figures.pop("client_cpu_s") / took_s}
    figures |= {"stages_ms": stages, "rss_bytes": rss(target.pid)}
    return figures | {"passes": passes(figures, scenario.objective_p99_ms)}


def find_knee(
    guess_per_s: float, steps: Steps, at: Callable[[float, float], dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Every step, by rate, and the confirmed knee; None if no rate keeps the objective.

    `at(rate_per_s, duration_s)` measures one. The ladder ends at a rate that saturates, or after
    `failures_max` that fail one after the other: a single one may be a neighbour of this machine waking up.
    The highest rate that kept the objective is then measured anew, for `confirm_s`: the knee's figures are of
    that run, and if it fails, of one at a lower rate.
    """
    measured = []

    def kept(rate_per_s: float) -> bool:
        measured.append(at(rate_per_s, steps.duration_s(rate_per_s)))
        return bool(measured[-1]["passes"])

    low, high, failures = 0.0, math.inf, 0
    for rate in islice(_rungs(guess_per_s, steps), steps.rungs_max):
        if kept(rate):
            low, high, failures = rate, math.inf, 0
            continue
        high, failures = min(high, rate), failures + 1
        if measured[-1]["saturated"] or failures == steps.failures_max:
            break
    for _ in range(steps.halvings_max):
        if high == math.inf or high - low <= steps.gap * high:
            break
        middle = (low + high) / 2
        if kept(middle):
            low = middle
        else:
            high = middle
    knee, rate = None, low
    for _ in range(steps.confirmations_max if low else 0):
        measured.append(at(rate, max(steps.confirm_s, steps.duration_s(rate))))
        if measured[-1]["passes"]:
            knee = measured[-1]
            break
        rate *= steps.back_off
    return sorted(measured, key=lambda figures: figures["rate_per_s"]), knee


def _rungs(guess_per_s: float, steps: Steps) -> Iterator[float]:
    yield from (share * guess_per_s for share in steps.ladder)
    rate = steps.ladder[-1] * guess_per_s
    while True:
        rate *= steps.growth
        yield rate
