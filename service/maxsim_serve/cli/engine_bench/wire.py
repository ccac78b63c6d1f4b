"""Reranks as raw HTTP over one open connection: a client that takes as little time as a client can."""

import socket
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["Answer", "Connection", "rerank"]


@dataclass(frozen=True)
class Answer:
    """`seconds` from before the request was written to after the answer was read."""

    seconds: float
    body: dict[str, Any]

    @property
    def scores(self) -> dict[str, float]:
        return {result["id"]: result["relevance_score"] for result in self.body["results"]}


def rerank(collection: str, query: NDArray[np.float16], ids: list[str], top_n: int | None = None) -> bytes:
    """A whole request, in msgpack."""
    vectors = {"data": query.tobytes(), "shape": list(query.shape), "dtype": "float16"}
    body: dict[str, object] = {"collection": collection, "query": vectors, "ids": ids}
    if top_n is not None:
        body["top_n"] = top_n
    data = msgspec.msgpack.encode(body)
    head = (
        "POST /rerank HTTP/1.1\r\nhost: bench\r\ncontent-type: application/msgpack\r\n"
        f"accept: application/msgpack\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Connection:
    """`with Connection(port) as connection: connection.ask(rerank(…))`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 22)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> Answer:
        """Raises RuntimeError for an answer that is not 200."""
        seconds, status, data = self.exchange(request)
        body = msgspec.msgpack.decode(data)
        if status != 200:
            raise RuntimeError(f"the service answered {status}: {body}")
        return Answer(seconds, body)

    def exchange(self, request: bytes) -> tuple[float, int, bytes]:
        """→ (seconds, status, body), which must announce its length."""
        started = time.perf_counter()
        self._socket.sendall(request)
        status, data = self._read()
        return time.perf_counter() - started, status, data

    def _read(self) -> tuple[int, bytes]:
        buffer = self._buffer
        received = self._socket.recv_into(buffer)
        while (split := buffer.find(b"\r\n\r\n", 0, received)) < 0:
            received += self._more(received)
        at = buffer.index(b"content-length: ", 0, split) + len(b"content-length: ")
        end = split + 4 + int(buffer[at : buffer.index(b"\r\n", at)])
        while received < end:
            received += self._more(received)
        return int(buffer[9:12]), bytes(buffer[split + 4 : end])

    def _more(self, received: int) -> int:
        count = self._socket.recv_into(memoryview(self._buffer)[received:])
        if count == 0:
            raise RuntimeError("the service closed the connection in the midst of an answer")
        return count
