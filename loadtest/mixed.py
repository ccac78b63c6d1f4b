"""Reranks under a bulk upload: does the service stay responsive, and does it drop what nobody waits for?

    python loadtest/mixed.py [--concurrency 64] [--upload-bytes 200000000] [--seconds 20]

Part one: `--concurrency` clients send /rerank requests of 1,000 ids without a pause while bodies of
`--upload-bytes` are uploaded (safetensors, then JSON floats), and /livez is asked every few milliseconds.
Part two: the queue is filled, then clients hang up while they wait; what they asked for must not be scored.
Exit status 0 if /livez stayed under 100 ms at the 99th percentile, nothing failed and what was abandoned
was dropped.
"""

import argparse
import asyncio
import multiprocessing
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import httpx
import msgspec
import numpy as np
from passages import SAFETENSORS, fill, passages, safetensors_body

from maxsim_serve.cli.local import LocalService

DIM = 128
MSGPACK = {"content-type": "application/msgpack"}


def rerank_body(rng: np.random.Generator, ids: list[str], candidates: int) -> bytes:
    query = rng.standard_normal((32, DIM)).astype(np.float16)
    vectors = {"data": query.tobytes(), "shape": [32, DIM], "dtype": "float16"}
    chosen = [ids[i] for i in rng.permutation(len(ids))[:candidates]]
    return msgspec.msgpack.encode({"collection": "load", "query": vectors, "ids": chosen, "top_n": 10})


def upload_bodies(size_bytes: int) -> dict[str, tuple[bytes, dict[str, str]]]:
    rng = np.random.default_rng(7)
    row_bytes = DIM * 2
    documents = size_bytes // (row_bytes * 120)
    vectors = passages(rng, documents, DIM)
    ids = [f"bulk-{i}" for i in range(documents)]
    binary = safetensors_body(ids, vectors)
    # A float16 takes about 17 characters as a JSON number.
    few = vectors[: size_bytes // (17 * DIM * 120)]
    text = msgspec.json.encode(
        {"documents": [{"id": f"json-{i}", "vectors": v.tolist()} for i, v in enumerate(few)]}
    )
    return {"safetensors": (binary, SAFETENSORS), "JSON floats": (text, {"content-type": "application/json"})}


async def rerank_forever(
    client: httpx.AsyncClient,
    bodies: list[bytes],
    stop: asyncio.Event,
    latencies_s: list[float],
    failures: list[str],
) -> None:
    number = 0
    while not stop.is_set():
        started = time.perf_counter()
        answer = await client.post("/rerank", content=bodies[number % len(bodies)], headers=MSGPACK)
        latencies_s.append(time.perf_counter() - started)
        if answer.status_code != 200 or len(answer.json()["results"]) != 10:
            failures.append(f"/rerank {answer.status_code}: {answer.text[:200]}")
        number += 1


def probe(url: str, seconds: float) -> list[float]:
    """Latencies in s of /livez, asked every few ms over one connection; for a process of its own."""
    latencies_s = []
    with httpx.Client(base_url=url, timeout=120) as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            started = time.perf_counter()
            client.get("/livez").raise_for_status()
            latencies_s.append(time.perf_counter() - started)
            time.sleep(0.005)
    return latencies_s


def upload(url: str, size_bytes: int) -> list[str]:
    """Upload each body in turn; a line on each. Raises for an answer that is not 200."""
    lines = []
    with httpx.Client(base_url=url, timeout=600) as client:
        for name, (body, headers) in upload_bodies(size_bytes).items():
            started = time.perf_counter()
            client.put("/collections/load/documents", content=body, headers=headers).raise_for_status()
            lines.append(f"{len(body) / 1e6:.0f} MB as {name} in {time.perf_counter() - started:.1f} s")
    return lines


async def under_load(url: str, ids: list[str], concurrency: int, size_bytes: int, seconds: float) -> bool:
    rng = np.random.default_rng(2)
    bodies = [rerank_body(rng, ids, 1000) for _ in range(200)]
    stop = asyncio.Event()
    reranks_s: list[float] = []
    failures: list[str] = []
    loop = asyncio.get_running_loop()
    limits = httpx.Limits(max_connections=concurrency)
    # Processes of their own: what is measured is the service's delay, not this client's.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as others:
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
            reranks = [
                asyncio.create_task(
                    rerank_forever(client, bodies[i:] + bodies[:i], stop, reranks_s, failures)
                )
                for i in range(concurrency)
            ]
            uploading = loop.run_in_executor(others, upload, url, size_bytes)
            livez_ms = np.array(await loop.run_in_executor(others, probe, url, seconds)) * 1e3
            for line in await uploading:
                print(f"  upload of {line}")
            stop.set()
            await asyncio.gather(*reranks)
    rerank_ms = np.array(reranks_s) * 1e3
    print(
        f"  {len(rerank_ms)} reranks of 1,000 ids, {concurrency} clients: p50 {np.median(rerank_ms):.0f} ms, "
        f"p99 {np.percentile(rerank_ms, 99):.0f} ms"
    )
    print(
        f"  {len(livez_ms)} × /livez: p50 {np.median(livez_ms):.1f} ms, "
        f"p99 {np.percentile(livez_ms, 99):.1f} ms, worst {livez_ms.max():.1f} ms (goal: p99 under 100)"
    )
    print(f"  errors: {len(failures)}", *failures[:3], sep="\n    " if failures else "")
    return not failures and bool(np.percentile(livez_ms, 99) < 100)


async def counted(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


async def hang_up(url: str, ids: list[str], leavers: int = 40) -> bool:
    """Fill the queue with long work, then leave: the counter must grow by as many as had not been scored."""
    rng = np.random.default_rng(3)
    long_body = rerank_body(rng, ids * 3, min(10_000, 3 * len(ids)))
    abandoned, scored = 'maxsim_rejected_total{reason="abandoned"}', "maxsim_rerank_candidates_count"
    async with httpx.AsyncClient(
        base_url=url, timeout=120, limits=httpx.Limits(max_connections=200)
    ) as client:
        before = [await counted(client, name) for name in (abandoned, scored)]

        async def post() -> httpx.Response:
            return await client.post("/rerank", content=long_body, headers=MSGPACK)

        async with httpx.AsyncClient(
            base_url=url, timeout=120, limits=httpx.Limits(max_connections=200)
        ) as other:
            stayers = [asyncio.create_task(post()) for _ in range(40)]
            await asyncio.sleep(0.3)
            tasks = [
                asyncio.create_task(other.post("/rerank", content=long_body, headers=MSGPACK))
                for _ in range(leavers)
            ]
            await asyncio.sleep(0.3)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        answers = await asyncio.gather(*stayers)
        await asyncio.sleep(1)
        after = [await counted(client, name) for name in (abandoned, scored)]
    dropped, done = (int(a - b) for a, b in zip(after, before, strict=True))
    print(f"  {len(stayers)} stayed, {leavers} hung up: {done} scored, {dropped} dropped unscored")
    return (
        all(a.status_code == 200 for a in answers)
        and dropped > 0
        and dropped + done == len(stayers) + leavers
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--upload-bytes", type=int, default=200_000_000)
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    with LocalService(encoder="none", on_wait=lambda _: None) as service:
        url = service.url
        with httpx.Client(base_url=url, timeout=120) as client:
            ids = fill(client, "load", documents=4000, dim=DIM)
        print("under load:")
        steady = asyncio.run(under_load(url, ids, args.concurrency, args.upload_bytes, args.seconds))
        print("hang-ups:")
        dropped = asyncio.run(hang_up(url, ids))
    return 0 if steady and dropped else 1


if __name__ == "__main__":
    sys.exit(main())
