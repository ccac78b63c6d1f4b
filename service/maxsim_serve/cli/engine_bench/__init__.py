"""`maxsim bench engine`: the service and its engine on this machine's GPU, each figure beside its goal.

A real service is started, filled and asked over HTTP by a client on the same machine; what HTTP would hide is
measured in this process. docs/benchmarks/h200-engine.md says how to read it.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import httpx
import torch

from maxsim.bench import ceilings, stream
from maxsim.bench.gpu_timing import GpuClock
from maxsim.bench.machine import versions

from ..local import LocalService
from . import answers, churn, corpus, inside, latency, pauses, saturation
from .rows import Goal, Report

__all__ = ["configure"]

_BUDGET_BYTES = 8 << 30


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `maxsim bench engine`."""
    parser.add_argument("--json", type=Path, help="write everything measured to this file, row by row")
    parser.add_argument("--gib", type=int, default=84, help="GiB of host memory for the out-of-core scan")
    parser.add_argument(
        "--cycles", type=int, default=25, help="of deletes and upserts in the storm of updates"
    )
    parser.add_argument("--quick", action="store_true", help="smaller collections, fewer requests")
    parser.set_defaults(run=_command)


def _command(arguments: argparse.Namespace) -> int:
    if not torch.cuda.is_available():
        print("maxsim bench engine: needs a CUDA GPU, and PyTorch sees none here", file=sys.stderr)
        return 1
    quick: bool = arguments.quick
    limits = asdict(ceilings.measure(GpuClock(15)))
    report = Report({**versions(), "quick": quick, "ceilings": limits}, arguments.json)
    pauses.pauses(report)
    passages = corpus.make(20_000, 60, 180, seed=1)
    settings = {"gpu_budget_bytes": _BUDGET_BYTES, "host_budget_bytes": _BUDGET_BYTES, "device": "cuda"}
    inside.batching(report, passages, requests=1000 if quick else 2000)
    inside.memory(report, passages, requests=2000 if quick else 10_000)
    torch.cuda.empty_cache()
    _out_of_core(report, gib=16 if quick else arguments.gib)
    with LocalService(
        encoder="none", settings=settings, start_timeout_s=300, on_wait=lambda _: None
    ) as service:
        _served(report, service.port, service.url, passages, quick, arguments.cycles)
    for case in report.missed:
        print(f"MISSED {case}")
    return 0


def _served(report: Report, port: int, url: str, passages: corpus.Corpus, quick: bool, cycles: int) -> None:
    requests = 100 if quick else 1000
    with httpx.Client(base_url=url, timeout=300) as client:
        corpus.fill(client, "passages", passages, "gpu")
        corpus.fill(client, "on-host", passages, "host")
        latency.latencies(
            report, port, "passages", passages, name="gpu tier, 1,000 × ~120",
            candidates=1000, query_rows=32, requests=requests,
            engine_ms=Goal(0.25), p50_ms=Goal(1.2), p99_ms=Goal(3.0),
        )  # fmt: skip
        latency.latencies(
            report, port, "passages", passages, name="gpu tier, 100 × ~120",
            candidates=100, query_rows=32, requests=requests, engine_ms=Goal(0.15),
        )  # fmt: skip
        latency.latencies(
            report, port, "passages", passages, name="gpu tier, 100 × ~120, each after 50 ms of silence",
            candidates=100, query_rows=32, requests=100, silence_s=0.05,
        )  # fmt: skip
        on_host = latency.latencies(
            report, port, "on-host", passages, name="host tier, 1,000 × ~120",
            candidates=1000, query_rows=32, requests=requests,
        )  # fmt: skip
        latency.host_tier(report, on_host)
        for name, tier in (("passages", "gpu"), ("on-host", "host")):
            latency.searches(report, client, name, f"{tier} tier, /search of {len(passages):,} documents")
        for name in ("passages", "on-host"):
            answers.equal_to_library(report, port, name, passages, f"{name}, before the storm")
        _pages(report, port, client, quick)
        answers.random_sizes(report, client, port, "passages", passages)
        for candidates in (100, 1000):
            saturation.saturate(report, client, port, "passages", len(passages), candidates)
        size_bytes, cycles = (200_000_000, min(cycles, 5)) if quick else (2_000_000_000, cycles)
        churn.churn(report, client, port, "gpu", size_bytes, cycles)
        for name in ("passages", "on-host"):
            answers.equal_to_library(report, port, name, passages, f"{name}, after the storm")


def _out_of_core(report: Report, gib: int) -> None:
    """A corpus that no device memory is needed for; every answer is compared with the whole scores'."""
    device_bytes = []
    for row in stream.measure(gib):
        goal = Goal(95, "at least") if row["unit"] == "%" else None
        report.add(f"out of core, {row['case']}", row["value"], row["unit"], goal)
        if row["unit"] == "MiB":
            device_bytes.append(row["value"])
    growth = 100 * (max(device_bytes) / min(device_bytes) - 1)
    report.add("out of core: device memory, most over least", growth, "% more", Goal(1))


def _pages(report: Report, port: int, client: httpx.Client, quick: bool) -> None:
    """ColPali's: pages of 1,024 rows, asked for with one of 1,024 rows."""
    pages = corpus.make(1200, 1024, 1024, seed=2)
    corpus.fill(client, "pages", pages, "gpu")
    latency.latencies(
        report, port, "pages", pages, name="gpu tier, 1,000 pages of 1,024, 1,024 rows",
        candidates=1000, query_rows=1024, requests=60 if quick else 200, engine_ms=Goal(0.55),
    )  # fmt: skip
