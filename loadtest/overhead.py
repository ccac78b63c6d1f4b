"""What the service adds to the scoring: total time of a /rerank minus its kernel time.

    python loadtest/overhead.py [--candidates 1000] [--requests 300] [--json FILE]

Starts one `maxsim serve` process on this machine with a store of random passages, then sends rerank
requests one after another over one connection, with the query as base64 fp16 in JSON and as msgpack.
The total is measured by the client, from before the request is written to after the answer is read.
"""

import argparse
import base64
import json
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np
from passages import fill

from maxsim_serve.cli.local import LocalService

DIM, QUERY_TOKENS = 128, 32
WARM_UP = 20


def as_base64(query: np.ndarray, ids: list[str]) -> tuple[bytes, str]:
    data = base64.b64encode(query.tobytes()).decode()
    vectors = {"data": data, "shape": list(query.shape), "dtype": "float16"}
    return msgspec.json.encode({"collection": "load", "query": vectors, "ids": ids}), "application/json"


def as_msgpack(query: np.ndarray, ids: list[str]) -> tuple[bytes, str]:
    vectors = {"data": query.tobytes(), "shape": list(query.shape), "dtype": "float16"}
    return msgspec.msgpack.encode({"collection": "load", "query": vectors, "ids": ids}), "application/msgpack"


FORMS: dict[str, Callable[[np.ndarray, list[str]], tuple[bytes, str]]] = {
    "base64 in JSON": as_base64,
    "msgpack": as_msgpack,
}


def read_answer(connection: socket.socket, buffer: bytearray) -> memoryview:
    """The body of one answer, which must announce its length, as a part of the buffer."""
    received = connection.recv_into(buffer)
    while (split := buffer.find(b"\r\n\r\n", 0, received)) < 0:
        received += connection.recv_into(memoryview(buffer)[received:])
    at = buffer.index(b"content-length: ", 0, split) + len("content-length: ")
    end = split + 4 + int(buffer[at : buffer.index(b"\r\n", at)])
    while received < end:
        received += connection.recv_into(memoryview(buffer)[received:])
    return memoryview(buffer)[split + 4 : end]


def measure(url: str, form: str, ids: list[str], requests: int, candidates: int) -> dict[str, float]:
    """Medians in ms: `total`, `scoring`, `overhead`, and every stage that the answer reports.

    The bodies are made before and the answers are read after the clock has run, so that the client takes
    as little as a client can: it writes a request to an open connection and reads what comes back.
    """
    rng = np.random.default_rng(0)
    bodies = []
    for _ in range(requests + WARM_UP):
        query = rng.standard_normal((QUERY_TOKENS, DIM)).astype(np.float16)
        bodies.append(FORMS[form](query, [ids[i] for i in rng.permutation(len(ids))[:candidates]]))
    answers = []
    buffer = bytearray(1 << 22)
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with socket.create_connection((str(host), port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for body, content_type in bodies:
            head = (
                f"POST /rerank HTTP/1.1\r\nhost: {host}\r\ncontent-type: {content_type}\r\n"
                f"accept: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            request = head.encode() + body
            started = time.perf_counter()
            connection.sendall(request)
            content = read_answer(connection, buffer)
            answers.append((time.perf_counter() - started, bytes(content)))
    decode = msgspec.msgpack.decode if form == "msgpack" else msgspec.json.decode
    rows = []
    for total_s, content in answers[WARM_UP:]:
        answer = decode(content)
        assert len(answer["results"]) == candidates, f"the service answered {answer}"
        stages = answer["meta"]["timings_ms"]
        total_ms = total_s * 1e3
        rows.append(
            {"total": total_ms, "scoring": stages["kernel"], "overhead": total_ms - stages["kernel"]} | stages
        )
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with (
        LocalService(encoder="none", on_wait=lambda _: None) as service,
        httpx.Client(base_url=service.url, timeout=60) as client,
    ):
        ids = fill(client, "load", documents=max(4000, args.candidates), dim=DIM)
        results = {form: measure(service.url, form, ids, args.requests, args.candidates) for form in FORMS}
    for form, row in results.items():
        print(f"\n{form}: {args.candidates} ids, median of {args.requests} requests, ms")
        for key, value in row.items():
            print(f"  {key:<10} {value:8.3f}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    worst = max(row["overhead"] for row in results.values())
    print(f"\noverhead {worst:.3f} ms (goal: under 1.5 ms)")
    return 0 if worst < 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
