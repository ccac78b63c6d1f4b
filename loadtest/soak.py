"""A soak: one constant rate for a quarter of an hour, and a verdict.

    python loadtest/soak.py [--duration-s 900] [--scenario 1000-candidates-with-upserts] [--rate-per-s R]
                            [--json docs/benchmarks/cpu-load-soak.json]

The rate is `--rate-per-s`, or a third of what one client gets that asks again after each answer. It fails on

- errors: an answer that is not 200 or has not its results, a connection that breaks, a scrape of /metrics
  that fails, sending that had to stop because too much was unanswered;
- growth of memory: the resident set (or the GPU's), less the rows that wait for compaction, is at its floor,
  the 10th percentile of its samples, in the last quarter more than 5 % and 32 MB above that of the second
  quarter. The floor, because compaction needs memory for a moment; the second quarter, because the first one
  warms up. And compaction must keep up: at the median of the last quarter no more than 60 % of the stored
  bytes may wait for it;
- drift of latency: the median over 60 slices of time of the slice's p50, or of its p99, is in the last
  quarter more than 25 % (p99: 50 %) and 2 ms (p99: 10 ms) above that of the second quarter.

Exit status 0 if it passes, 1 and a line for each reason if not.
"""

import json
import math
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np
from clients import Clients, percentiles_ms, summary
from knee import guess_per_s
from observe import Observer
from openloop import Load, Outcome
from scenarios import CollectionPlan, Scenario, read
from target import Target, argument_parser, filled, machine, opened

__all__ = ["drifts", "growths", "soak"]

_RATE_SHARE = 1 / 3
_SLICES = 60
_QUARTER = 4
_UNANSWERED_MAX = 256
_FLOOR_PERCENTILE = 10
_GROWTH_SHARE, _GROWTH_BYTES = 0.05, 32 << 20
_DEAD_SHARE_MAX = 0.6
_DRIFT = {"p50": (0.25, 2.0), "p99": (0.5, 10.0)}  # share of the earlier value, and ms
_WARM_UP_S = 0.5


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--scenario", default="1000-candidates-with-upserts")
    parser.add_argument("--rate-per-s", type=float)
    parser.add_argument("--duration-s", type=float, default=900)
    args = parser.parse_args()
    catalogue = read(args.catalogue)
    if args.scenario not in catalogue.scenarios:
        parser.error(f"no scenario {args.scenario}; there are {', '.join(catalogue.scenarios)}")
    scenario, collection = catalogue.scenarios[args.scenario], catalogue.collection
    with opened(args) as target, Clients(args.clients) as clients:
        _, left_out = filled(target, collection, {scenario.name: scenario})
        if left_out:
            parser.error(f"{scenario.name} cannot run: {left_out[scenario.name]}")
        rate_per_s = args.rate_per_s or _RATE_SHARE * guess_per_s(target, scenario, collection, 3.0)
        print(f"{scenario.name}: {rate_per_s:.1f} a second for {args.duration_s:g} s", flush=True)
        found = soak(target, clients, scenario, collection, rate_per_s, args.duration_s)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    latency = found["rerank_ms"]
    print(f"{found['requests']} requests, p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms")
    print("\n".join(f"FAILED: {reason}" for reason in found["failures"]) or "passed")
    return 1 if found["failures"] else 0


def soak(
    target: Target,
    clients: Clients,
    scenario: Scenario,
    collection: CollectionPlan,
    rate_per_s: float,
    duration_s: float,
) -> dict[str, Any]:
    """Offer the rate; the figures, and `failures`: the reasons why it did not pass, if any."""
    load = Load(target.port, scenario, collection, rate_per_s, duration_s, unanswered_max=_UNANSWERED_MAX)
    with Observer(target.url, target.pid, interval_s=min(1.0, duration_s / _SLICES)) as observer:
        started_s = time.monotonic()
        outcome = clients.offer(load)
    figures = summary(load, outcome, _WARM_UP_S)
    slices = _slices(outcome, duration_s)
    memory = [{**sample, "at_s": round(sample["at_s"] - started_s, 2)} for sample in observer.samples]
    failures = [f"/metrics: {failure}" for failure in observer.failures[:3]]
    if figures["failed"]:
        failures.append(f"{figures['failed']} requests failed: {'; '.join(figures['reasons'])}")
    if figures["saturated"]:
        failures.append(f"sending stopped: {_UNANSWERED_MAX} requests were unanswered")
    failures += growths(memory, duration_s) + drifts(slices, duration_s)
    return {
        "machine": machine(),
        "scenario": asdict(scenario),
        "duration_s": duration_s,
        **figures,
        "slices": slices,
        "memory": memory,
        "failures": failures,
    }


def growths(memory: list[dict[str, Any]], duration_s: float) -> list[str]:
    """Reasons to fail in the samples of an `Observer`; a kind of memory never seen gives none."""
    reasons = []
    for kind, dead in (("rss_bytes", "host_dead_bytes"), ("gpu_bytes", "gpu_dead_bytes")):
        used = [{"at_s": s["at_s"], "bytes": s[kind] - (s[dead] or 0)} for s in memory if s[kind] is not None]
        if not used:
            continue
        early, late = (
            float(np.percentile([row["bytes"] for row in quarter] or [math.nan], _FLOOR_PERCENTILE))
            for quarter in _quarters(used, duration_s)
        )
        if not late - early <= max(_GROWTH_SHARE * early, _GROWTH_BYTES):
            reasons.append(
                f"{kind} at its floor, without {dead}, went from {early / 1e6:.0f} MB in the second quarter "
                f"to {late / 1e6:.0f} MB in the last"
            )
    shares = [
        ((s["host_dead_bytes"] or 0) + (s["gpu_dead_bytes"] or 0)) / s["store_bytes"]
        for s in _quarters(memory, duration_s)[1]
        if s["store_bytes"]
    ]
    if shares and np.median(shares) > _DEAD_SHARE_MAX:
        reasons.append(f"{np.median(shares):.0%} of the stored bytes wait for compaction in the last quarter")
    return reasons


def drifts(slices: list[dict[str, float]], duration_s: float) -> list[str]:
    """Reasons to fail in slices {"at_s", "p50", "p99"} of ms."""
    reasons = []
    for name, (share, ms) in _DRIFT.items():
        early, late = (
            float(np.median([s[name] for s in q] or [math.nan])) for q in _quarters(slices, duration_s)
        )
        if not late - early <= max(share * early, ms):
            reasons.append(
                f"{name} went from {early:.1f} ms in the second quarter to {late:.1f} ms in the last"
            )
    return reasons


def _quarters(
    rows: list[dict[str, Any]], duration_s: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of the second and of the last quarter."""
    quarter_s = duration_s / _QUARTER
    second = [row for row in rows if quarter_s <= row["at_s"] < 2 * quarter_s]
    return second, [row for row in rows if 3 * quarter_s <= row["at_s"] <= duration_s + 1]


def _slices(outcome: Outcome, duration_s: float) -> list[dict[str, float]]:
    """Latency of the reranks over time, by when they should have left."""
    at_s = outcome.intended_s - outcome.intended_s[0]
    latency_ms = (outcome.done_s - outcome.intended_s) * 1e3
    counted = ~np.isnan(latency_ms) & ~outcome.upsert
    slices = []
    for number in range(_SLICES):
        start_s, end_s = (duration_s * edge / _SLICES for edge in (number, number + 1))
        found = percentiles_ms(latency_ms[counted & (at_s >= start_s) & (at_s < end_s)])
        if found is not None:
            slices.append({"at_s": start_s} | found)
    return slices


if __name__ == "__main__":
    sys.exit(main())
