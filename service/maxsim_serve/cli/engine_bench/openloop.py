"""Requests at a constant rate, whatever has become of those before: latency counts from when each was meant
to leave. Several processes share a rate, each with connections of its own; all is made before the clock runs.
"""

import asyncio
import gc
import multiprocessing
import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Outcome", "Senders"]

_CONNECTIONS = 48
_HEAD_START_S = 0.5
_TIMEOUT_S = 20.0


class Outcome(NamedTuple):
    """Latencies in s of the answered requests, how many failed, the seconds that all of it took, and the body
    of the answer that took longest."""

    latency_s: NDArray[np.float64]
    failed: int
    took_s: float
    slowest: bytes


class _Share(NamedTuple):
    """What one process sends: requests first, first + step, … of a rate."""

    port: int
    rate_per_s: float
    requests: int
    first: int
    step: int
    starts_s: float


class Senders:
    """Processes that send; `messages` makes what they send, once, and must be a function of a module."""

    def __init__(self, processes: int, messages: Callable[[], Sequence[bytes]]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pools = [
            ProcessPoolExecutor(1, spawn, initializer=_prepare, initargs=(messages,))
            for _ in range(processes)
        ]

    def offer(self, port: int, rate_per_s: float, seconds: float) -> Outcome:
        count, step = max(1, round(rate_per_s * seconds)), len(self._pools)
        for ready in [pool.submit(_ready) for pool in self._pools]:
            ready.result()
        starts_s = time.monotonic() + _HEAD_START_S
        running = [
            pool.submit(_send, _Share(port, rate_per_s, count, first, step, starts_s))
            for first, pool in enumerate(self._pools)
        ]
        parts = [each.result() for each in running]
        latency_s = np.concatenate([part.latency_s for part in parts])
        slowest = max(parts, key=lambda part: part.latency_s.max(initial=0.0)).slowest
        return Outcome(latency_s, sum(p.failed for p in parts), max(p.took_s for p in parts), slowest)

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown()


_messages: Sequence[bytes] = ()


def _prepare(messages: Callable[[], Sequence[bytes]]) -> None:
    global _messages
    _messages = messages()
    gc.freeze()


def _ready() -> None:
    """Done when the process is up and its messages are made."""


def _send(share: _Share) -> Outcome:
    # select() keeps time to some 50 µs; epoll, which asyncio takes by itself, to 1 ms.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(_Sender(share).run())


class _Connection(asyncio.Protocol):
    """One kept connection with at most one request under way."""

    def __init__(self, answered: Callable[["_Connection", bytes | None], None]) -> None:
        self._answered = answered
        self._buffer = bytearray()
        self._begin = self._end = 0  # of the body
        self.due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._end and (split := self._buffer.find(b"\r\n\r\n")) > 0:
            at = self._buffer.index(b"content-length: ", 0, split) + len(b"content-length: ")
            self._begin = split + 4
            self._end = self._begin + int(self._buffer[at : self._buffer.index(b"\r\n", at)])
        if self._end and len(self._buffer) >= self._end:
            body = bytes(self._buffer[self._begin : self._end]) if self._buffer[9:12] == b"200" else None
            self._buffer.clear()
            self._end = 0
            self._answered(self, body)


class _Sender:
    def __init__(self, share: _Share) -> None:
        self._share = share
        self._free: list[_Connection] = []
        self._waiting: deque[tuple[int, float]] = deque()
        self._latency_s: list[float] = []
        self._slowest_s, self._slowest = 0.0, b""
        self._failed = 0
        self._left = len(range(share.first, share.requests, share.step))

    async def run(self) -> Outcome:
        share, loop = self._share, asyncio.get_running_loop()
        self._done = asyncio.Event()
        for _ in range(_CONNECTIONS):
            _, connection = await loop.create_connection(
                lambda: _Connection(self._answered), "127.0.0.1", share.port
            )
            self._free.append(connection)
        begun_s = share.starts_s
        try:
            async with asyncio.timeout(share.requests / share.rate_per_s + _TIMEOUT_S):
                for number in range(share.first, share.requests, share.step):
                    due_s = share.starts_s + number / share.rate_per_s
                    if (wait_s := due_s - time.monotonic()) > 0:
                        await asyncio.sleep(wait_s)
                    self._waiting.append((number, due_s))
                    self._send_waiting()
                await self._done.wait()
        except TimeoutError:
            self._failed += self._left
        took_s = time.monotonic() - begun_s
        for connection in self._free:
            connection.transport.close()
        return Outcome(np.array(self._latency_s), self._failed, took_s, self._slowest)

    def _send_waiting(self) -> None:
        while self._free and self._waiting:
            number, due_s = self._waiting.popleft()
            connection = self._free.pop()
            connection.due_s = due_s
            connection.transport.write(_messages[number % len(_messages)])

    def _answered(self, connection: _Connection, body: bytes | None) -> None:
        if body is None:
            self._failed += 1
        else:
            latency_s = time.monotonic() - connection.due_s
            self._latency_s.append(latency_s)
            if latency_s > self._slowest_s:
                self._slowest_s, self._slowest = latency_s, body
        self._left -= 1
        self._free.append(connection)
        self._send_waiting()
        if self._left == 0:
            self._done.set()
