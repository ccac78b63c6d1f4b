"""An open-loop client: requests leave at a constant rate, whatever has become of those before them.

Latency counts from the moment at which a request was *meant* to leave. A service that stalls for a second
at 100 requests a second therefore shows a hundred slow answers, where a client that waits for each answer
before it asks again would show one.

One thread, raw HTTP/1.1 over kept connections, everything made before the clock runs: a request costs this
process about 0.3 ms, a tenth of what it costs the service. It runs in a process of its own (`clients.py`), or
in several that take turns; the reports say what they used, and how late requests left.
"""

import asyncio
import gc
import selectors
import time
from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np
from scenarios import CollectionPlan, Scenario, is_upsert, messages

__all__ = ["REASONS_MAX", "Load", "Outcome", "run"]

_IDLE_MAX_S = 4.0  # the service closes connections that were idle for 5 s
_CHECK_EVERY = 50  # of the answers, one in so many is decoded and its results are counted
REASONS_MAX = 5


@dataclass(frozen=True)
class Load:
    """What to send. With `unanswered_max` requests unanswered, sending stops: the rate is not carried."""

    port: int
    scenario: Scenario
    collection: CollectionPlan
    rate_per_s: float
    duration_s: float
    unanswered_max: int = 64
    timeout_s: float = 30.0
    starts_s: float = 0.0  # on the monotonic clock
    first: int = 0
    step: int = 1  # this client sends requests first, first + step, …


@dataclass
class Outcome:
    """A row a request. Times in s on the monotonic clock; `done_s` is NaN and `status` 0 without an answer.

    `due` is False for what was left unsent because sending had stopped.
    """

    intended_s: np.ndarray
    sent_s: np.ndarray
    done_s: np.ndarray
    status: np.ndarray
    due: np.ndarray
    upsert: np.ndarray
    saturated: bool
    client_cpu_s: float
    reasons: list[str] = field(default_factory=list)
    """Why requests failed: the first few."""


class _Connection(asyncio.Protocol):
    """One kept connection with at most one request under way."""

    def __init__(self, client: "_Client") -> None:
        self._client = client
        self._buffer = bytearray()
        self.number: int | None = None
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._client.available(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        split = self._buffer.find(b"\r\n\r\n")
        if split < 0:
            return
        head = bytes(self._buffer[:split]).lower()
        at = head.find(b"content-length: ") + len(b"content-length: ")
        end = split + 4 + int(head[at : (head + b"\r\n").index(b"\r\n", at)])
        if len(self._buffer) >= end:
            body = bytes(self._buffer[split + 4 : end])
            self._buffer.clear()
            self._client.answered(self, int(head[9:12]), body, closes=b"connection: close" in head)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.lost(self, f"the connection was closed without an answer ({error or 'in order'})")


class _Client:
    def __init__(self, load: Load, loop: asyncio.AbstractEventLoop) -> None:
        self._load, self._loop = load, loop
        self._reranks, self._upserts = messages(load.scenario, load.collection)
        count = max(1, round(load.rate_per_s * load.duration_s))
        self._numbers = range(load.first, count, load.step)
        self._next = 0
        self._under_way = 0
        self._waiting: deque[int] = deque()
        self._free: list[_Connection] = []
        self._done = asyncio.Event()
        numbers = np.array(self._numbers)
        empty = np.full(len(numbers), np.nan)
        self.outcome = Outcome(
            intended_s=load.starts_s + numbers / load.rate_per_s,
            sent_s=empty.copy(),
            done_s=empty.copy(),
            status=np.zeros(len(numbers), np.int64),
            due=np.zeros(len(numbers), bool),
            upsert=np.array([is_upsert(load.scenario, int(n)) for n in numbers]),
            saturated=False,
            client_cpu_s=0.0,
        )

    async def run(self) -> Outcome:
        gc.collect()
        gc.disable()
        cpu_s = time.process_time()
        self._due()
        last_s = self._load.starts_s + self._load.duration_s + self._load.timeout_s
        try:
            async with asyncio.timeout_at(last_s):
                await self._done.wait()
        except TimeoutError:
            self._note(f"no answer within {self._load.timeout_s:g} s of the last request")
        self.outcome.client_cpu_s = time.process_time() - cpu_s
        gc.enable()
        return self.outcome

    def _due(self) -> None:
        """Send whatever should have left by now, and wake up for the next."""
        now_s = time.monotonic()
        intended_s = self.outcome.intended_s
        while self._next < len(self._numbers) and intended_s[self._next] <= now_s:
            if self._under_way >= self._load.unanswered_max:
                self.outcome.saturated = True
                self._next = len(self._numbers)
                break
            self._under_way += 1
            self.outcome.due[self._next] = True
            self._waiting.append(self._next)
            self._next += 1
            self._send_waiting()
        if self._next < len(self._numbers):
            self._loop.call_at(float(intended_s[self._next]), self._due)
        self._finish_if_done()

    def _send_waiting(self) -> None:
        """Hand the first that waits to a connection, or open one for it; a connection carries one request."""
        while self._free:
            connection = self._free.pop()
            if time.monotonic() - connection.idle_since_s < _IDLE_MAX_S:
                self._send(connection)
                return
            connection.transport.close()
        self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            await self._loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._load.port)
        except OSError as error:
            if self._waiting:
                self._failed(f"no connection: {error}")
                self._waiting.popleft()

    def available(self, connection: _Connection) -> None:
        connection.idle_since_s = time.monotonic()
        self._free.append(connection)
        if self._waiting:
            self._send(self._free.pop())

    def _send(self, connection: _Connection) -> None:
        number = self._waiting.popleft()
        connection.number = number
        bodies = self._upserts if self.outcome.upsert[number] else self._reranks
        self.outcome.sent_s[number] = time.monotonic()
        connection.transport.write(bodies[self._numbers[number] % len(bodies)])

    def answered(self, connection: _Connection, status: int, body: bytes, *, closes: bool) -> None:
        number, connection.number = connection.number, None
        assert number is not None
        self.outcome.done_s[number] = time.monotonic()
        self.outcome.status[number] = status
        if status != 200:
            self._note(f"{status}: {body[:200].decode(errors='replace')}")
        elif number % _CHECK_EVERY == 0 and not self.outcome.upsert[number]:
            self._check(number, body)
        self._under_way -= 1
        if closes:
            connection.transport.close()
            if self._waiting:
                self._send_waiting()
        else:
            self.available(connection)
        self._finish_if_done()

    def _check(self, number: int, body: bytes) -> None:
        decode = msgspec.msgpack.decode if self._load.scenario.form == "msgpack" else msgspec.json.decode
        found = len(decode(body)["results"])
        if found != self._load.scenario.results:
            self.outcome.status[number] = 0
            self._note(f"{found} results where {self._load.scenario.results} were asked for")

    def lost(self, connection: _Connection, reason: str) -> None:
        if connection.number is not None:
            connection.number = None
            self._failed(reason)
        elif connection in self._free:
            self._free.remove(connection)

    def _failed(self, reason: str) -> None:
        self._note(reason)
        self._under_way -= 1
        self._finish_if_done()

    def _note(self, reason: str) -> None:
        if len(self.outcome.reasons) < REASONS_MAX:
            self.outcome.reasons.append(reason)

    def _finish_if_done(self) -> None:
        if self._next >= len(self._numbers) and self._under_way == 0:
            self._done.set()


def run(load: Load) -> Outcome:
    """Send the load from this process; blocks until everything is answered."""
    # select() keeps time to some 50 µs; epoll, which asyncio takes by itself, to 1 ms.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:

        async def send() -> Outcome:
            return await _Client(load, asyncio.get_running_loop()).run()

        return runner.run(send())
