"""How long the machine stops a thread that never waits: no service on it can be quicker than that."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

from .rows import Report

__all__ = ["pauses"]

_SPIN_S = 2.0


def pauses(report: Report) -> None:
    """Add the longest pause in 2 s of one process that spins, and of eight at a time."""
    spawn = multiprocessing.get_context("spawn")
    for processes in (1, 8):
        with ProcessPoolExecutor(processes, spawn) as pool:
            longest_s = max(pool.map(_spin, [_SPIN_S] * processes))
        name = f"this machine: longest pause of {processes} spinning process{'es' * (processes > 1)}"
        report.add(name, 1e3 * longest_s, "ms")


def _spin(seconds: float) -> float:
    longest_s = 0.0
    before = started = time.perf_counter()
    while before - started < seconds:
        now = time.perf_counter()
        longest_s = max(longest_s, now - before)
        before = now
    return longest_s
