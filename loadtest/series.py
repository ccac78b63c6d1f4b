"""Series and gauges over restarts: `python loadtest/series.py [--restarts 50] [--requests 10000]`.

Each round starts the service on the same directory, looks whether the store's gauges are what the last round
left, sends its share of requests with random paths, ids, methods and collections, changes the store, and
counts the series. Exit status 1 where a gauge was wrong or the series grew.
"""

import argparse
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import httpx

from maxsim_serve.cli.local import free_port

DIM = 16
_VALUE = re.compile(r"^(maxsim_store_(?:documents|tokens|bytes))\{(.*)\} (.+)$", re.MULTILINE)


def gauges(text: str) -> dict[tuple[str, str], float]:
    return {(name, labels): float(value) for name, labels, value in _VALUE.findall(text)}


def series(text: str) -> int:
    return sum(not line.startswith("#") for line in text.splitlines())


def ask(client: httpx.Client, count: int) -> None:
    row = [[1.0] * DIM]
    for _ in range(count):
        name = f"n{random.getrandbits(60):x}"
        method, path, body = random.choice(
            (
                ("GET", f"/{name}", None),
                ("GET", f"/collections/{name}", None),
                ("GET", f"/collections/default/documents/{name}", None),
                (name.upper(), "/livez", None),
                ("POST", f"/c/{name}/rerank", {"query": row, "ids": [name]}),
                ("POST", "/rerank", {"query": row, "ids": [name]}),
                ("POST", "/search", {"query": row, "top_k": 1, "collection": name}),
            )
        )
        client.request(method, path, json=body)
    for suffix in range(3):  # made and dropped again: no trace of them may stay
        name = f"n{random.getrandbits(60):x}-{suffix}"
        client.put(f"/collections/{name}", json={"dim": DIM}).raise_for_status()
        client.delete(f"/collections/{name}").raise_for_status()


def change(client: httpx.Client, number: int) -> None:
    rows = [[1.0] * DIM] * random.randint(1, 9)
    documents = [{"id": f"{number}-{i}", "vectors": rows} for i in range(5)]
    client.put("/collections/default/documents", json={"documents": documents}).raise_for_status()
    client.post("/collections/default/documents/delete", json={"ids": [f"{number}-0", f"{number - 1}-1"]})


def start(directory: str) -> tuple["subprocess.Popen[bytes]", httpx.Client]:
    port = free_port()
    command = [sys.executable, "-m", "maxsim_serve", "serve", "--port", str(port), "--data-dir", directory]
    process = subprocess.Popen([*command, "--threads", "1", "--log-level", "error"])
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    while True:
        try:
            if client.get("/readyz").status_code == 200:
                return process, client
        except httpx.TransportError:
            if process.poll() is not None:
                raise SystemExit("the service did not start") from None
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--restarts", type=int, default=50)
    parser.add_argument("--requests", type=int, default=10_000)
    args = parser.parse_args()
    counts, wrong, left = [], 0, {}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(args.restarts + 1):
            process, client = start(directory)
            try:
                wrong += gauges(client.get("/metrics").text) != left
                client.put("/collections/default", json={"dim": DIM}).raise_for_status()
                ask(client, args.requests // (args.restarts + 1))
                change(client, number)
                text = client.get("/metrics").text
                left = gauges(text)
                info = client.get("/collections/default").json()
                shown = {name: value for (name, _), value in left.items()}
                wrong += any(
                    shown[f"maxsim_store_{key}"] != info[key] for key in ("documents", "tokens", "bytes")
                )
                counts.append(series(text))
            finally:
                client.close()
                process.send_signal(signal.SIGTERM)
                process.wait(60)
    print(
        f"{args.restarts} restarts, {args.requests} requests: {min(counts)} to {max(counts)} series; ", end=""
    )
    print(f"first rounds {counts[:3]}, last {counts[-3:]}; gauges wrong {wrong} times")
    return int(wrong > 0 or max(counts) > 1.2 * min(counts))


if __name__ == "__main__":
    raise SystemExit(main())
