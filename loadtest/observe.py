"""What a service says of itself while it is under load: stage times, memory, processor time."""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from maxsim_serve.cli.scrape import Metrics, read_metrics, total

__all__ = ["Observer", "cpu_s", "rss", "stages_ms"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def stages_ms(before: Metrics, after: Metrics) -> dict[str, float]:
    """Mean time in each stage of the reranks between two readings, in the order of a request."""
    means = {}
    for (name, labels), count in after.items():
        if name != "maxsim_stage_duration_seconds_count":
            continue
        key = ("maxsim_stage_duration_seconds_sum", labels)
        requests = count - before.get((name, labels), 0.0)
        if requests > 0:
            means[dict(labels)["stage"]] = (after[key] - before.get(key, 0.0)) / requests * 1e3
    order = ("parse", "encode", "queue", "lookup", "launch", "kernel", "topk", "serialize")
    rank = {stage: place for place, stage in enumerate(order)}
    return dict(sorted(means.items(), key=lambda item: rank.get(item[0], len(order))))


class Observer:
    """Samples the service once a second, on a thread of its own: `with Observer(url, pid) as observer:`.

    A sample is {"at_s" (monotonic), "rss_bytes", "gpu_bytes", "host_dead_bytes", "gpu_dead_bytes",
    "store_bytes"}; None where it cannot be known: RSS without a process id, the GPU's without a GPU. Dead
    bytes are token rows that were overwritten and wait for compaction; `store_bytes` has them in it.
    """

    def __init__(self, url: str, pid: int | None, interval_s: float = 1.0) -> None:
        self._client = httpx.Client(base_url=url, timeout=30)
        self._pid = pid
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self.samples: list[dict[str, Any]] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.samples.append(self._sample())
            except (httpx.HTTPError, OSError) as error:
                self.failures.append(repr(error))

    def _sample(self) -> dict[str, Any]:
        metrics = read_metrics(self._client)
        return {
            "at_s": time.monotonic(),
            "rss_bytes": rss(self._pid),
            "gpu_bytes": total(metrics, "maxsim_gpu_memory_bytes"),
            "host_dead_bytes": total(metrics, "maxsim_store_dead_bytes", tier="host"),
            "gpu_dead_bytes": total(metrics, "maxsim_store_dead_bytes", tier="gpu"),
            "store_bytes": total(metrics, "maxsim_store_bytes"),
        }


def rss(pid: int | None) -> int | None:
    """Resident bytes of a process on this machine."""
    if pid is None:
        return None
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def cpu_s(pid: int | None) -> float | None:
    """Processor seconds that a process on this machine has used."""
    if pid is None:
        return None
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS_PER_S
