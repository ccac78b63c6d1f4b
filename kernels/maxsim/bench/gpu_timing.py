"""Clocks for one call on the GPU: cold by events, cold and hot by graph replay, and the host's own part.

Before a cold run the L2 cache is emptied by *reading* a large buffer. Writing one would leave about
50 MB of dirty lines, and their write-back would be charged to the call that is timed: 8 to 9 µs on an H200.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["Call", "GpuClock", "Uncapturable", "events_ms"]

Call = Callable[[], object]

FLUSH_BYTES = 256 * 2**20
WARM_UPS = 5
# Calls longer than this are timed fewer times.
LONG_MS = 10.0
FEWEST_RUNS = 5
# The device idles this long first, so that a call's launches are queued before its clock starts: what is
# timed is the device's work, not the wait for the host, which `host_us` reports. About 0.4 ms.
HEAD_START_CYCLES = 700_000
# The same before many replays, for each of them.
REPLAY_HEAD_START_CYCLES = 15_000
# Readings of the large buffer, some 60 ms of them, that bring the device's clock back up.
ROUSING_READS = 1000
HOST_RUNS = 200
HOT_REPLAYS_MS, MOST_HOT_REPLAYS = 10.0, 200


class Uncapturable(Exception):
    """The call waits for the device or fails under stream capture, so no graph of it exists."""


class GpuClock:
    """Times calls on the current CUDA device; `runs` is how often a short call is timed."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self._buffer = torch.ones(FLUSH_BYTES // 4, device="cuda")
        self._sum = torch.empty((), device="cuda")

    def cold_ms(self, call: Call, runs: int | None = None) -> float:
        """Median of one call from an empty L2 cache, by events around it; `runs` in place of the usual."""
        for _ in range(WARM_UPS):
            call()
        torch.cuda.synchronize()
        first = self._cold_once_ms(call)
        runs = runs or self.runs
        if first > LONG_MS:
            runs = max(runs // 4, FEWEST_RUNS)
        return statistics.median(self._cold_once_ms(call) for _ in range(runs))

    def graph_ms(self, call: Call) -> tuple[float, float]:
        """One call captured as a CUDA graph → (median replay from an empty cache, back to back replays).

        Raises Uncapturable.
        """
        graph = _capture(call)
        self._rouse()
        cold_ms = self.cold_ms(graph.replay)
        replays = int(min(max(HOT_REPLAYS_MS / cold_ms, FEWEST_RUNS), MOST_HOT_REPLAYS))

        def many() -> None:
            for _ in range(replays):
                graph.replay()

        def once_ms() -> float:
            torch.cuda._sleep(replays * REPLAY_HEAD_START_CYCLES)
            return events_ms(many)

        many()
        return cold_ms, statistics.median(once_ms() for _ in range(FEWEST_RUNS)) / replays

    def host_us(self, call: Call, device_ms: float) -> float:
        """Median time the host spends in the call, the device's queue being empty when it begins."""
        runs = HOST_RUNS if device_ms < 1 else FEWEST_RUNS * 4
        taken_s = []
        for _ in range(runs):
            torch.cuda.synchronize()
            start_s = time.perf_counter()
            call()
            taken_s.append(time.perf_counter() - start_s)
        torch.cuda.synchronize()
        return statistics.median(taken_s) * 1e6

    def _rouse(self) -> None:
        """After a capture, before which PyTorch returns all unused memory: meanwhile the device has idled."""
        for _ in range(ROUSING_READS):
            torch.sum(self._buffer, dim=0, out=self._sum)

    def _cold_once_ms(self, call: Call) -> float:
        torch.cuda._sleep(HEAD_START_CYCLES)
        torch.sum(self._buffer, dim=0, out=self._sum)
        return events_ms(call)


def events_ms(call: Call) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    stop.record()
    stop.synchronize()
    taken_ms: float = start.elapsed_time(stop)
    return taken_ms


def _capture(call: Call) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        # A wait inside a capture would spoil the capture; outside one it is only an exception.
        with _no_waiting():
            call()
        with torch.cuda.graph(graph):
            call()
    except RuntimeError as error:
        raise Uncapturable(str(error).partition("\n")[0]) from error
    return graph


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Inside, whatever makes the host wait for the device raises RuntimeError."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
