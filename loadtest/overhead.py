"""What the service adds to the scoring: total time of a /rerank minus its kernel time.

    python loadtest/overhead.py [--candidates 1000] [--requests 300] [--json FILE]

Starts one `maxsim serve` process on this machine with a store of random passages, then sends rerank
requests one after another over one connection, with the query as base64 fp16 in JSON and as msgpack.
The total is measured by the client, from before the request is written to after the answer is read.
"""

import argparse
import base64
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import numpy as np
from passages import fill

from maxsim_serve.cli.engine_bench.wire import Connection
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


def measure(port: int, form: str, ids: list[str], requests: int, candidates: int) -> dict[str, float]:
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
    with Connection(port) as connection:
        for body, content_type in bodies:
            head = (
                f"POST /rerank HTTP/1.1\r\nhost: loadtest\r\ncontent-type: {content_type}\r\n"
                f"accept: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            answers.append(connection.exchange(head.encode() + body))
    decode = msgspec.msgpack.decode if form == "msgpack" else msgspec.json.decode
    rows = []
    for total_s, _, content in answers[WARM_UP:]:
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
        results = {form: measure(service.port, form, ids, args.requests, args.candidates) for form in FORMS}
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
