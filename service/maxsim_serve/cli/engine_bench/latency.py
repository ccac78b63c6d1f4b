"""One request at a time, the service idle before each: the whole of it, and the engine's part."""

import time

import httpx
import msgspec
import numpy as np

from .corpus import DIM, Corpus
from .rows import Goal, Report
from .wire import Connection, rerank

__all__ = ["host_tier", "latencies", "searches"]

_WARM_UP = 30
_GB = 1e9


def latencies(
    report: Report,
    port: int,
    collection: str,
    corpus: Corpus,
    *,
    name: str,
    candidates: int,
    query_rows: int,
    requests: int,
    silence_s: float = 0.0,
    engine_ms: Goal | None = None,
    p50_ms: Goal | None = None,
    p99_ms: Goal | None = None,
) -> dict[str, float]:
    """Add the rows of one kind of request, each after `silence_s` → medians of the stages in ms, and
    `kernel_bytes` read by one."""
    rng = np.random.default_rng(3)
    ids = corpus.ids
    totals, stages, read_bytes = [], [], []
    with Connection(port) as connection:
        for number in range(_WARM_UP + requests):
            query = rng.standard_normal((query_rows, DIM)).astype(np.float16)
            chosen = rng.permutation(len(corpus))[:candidates]
            time.sleep(silence_s)
            answer = connection.ask(rerank(collection, query, [ids[i] for i in chosen.tolist()]))
            if number < _WARM_UP:
                continue
            meta = answer.body["meta"]
            totals.append(1e3 * answer.seconds)
            stages.append(meta["timings_ms"] | {"engine": meta["engine_ms"]})
            read_bytes.append(2 * DIM * int(corpus.lengths[chosen].sum()))
    medians = {stage: float(np.median([one[stage] for one in stages])) for stage in stages[0]}
    report.add(f"{name}: engine, median", medians["engine"], "ms", engine_ms)
    report.add(f"{name}: kernel, median", medians["kernel"], "ms")
    report.add(f"{name}: request, p50", float(np.percentile(totals, 50)), "ms", p50_ms)
    report.add(f"{name}: request, p99", float(np.percentile(totals, 99)), "ms", p99_ms)
    for stage, median_ms in medians.items():
        if stage not in ("engine", "kernel"):
            report.add(f"{name}: {stage}, median", median_ms, "ms")
    return medians | {"kernel_bytes": float(np.median(read_bytes))}


def searches(report: Report, client: httpx.Client, collection: str, name: str) -> None:
    """Add how long the best ten of a whole collection take."""
    rng = np.random.default_rng(10)
    totals, engine = [], []
    for _ in range(40):
        query = rng.standard_normal((32, DIM)).astype(np.float16)
        vectors = {"data": query.tobytes(), "shape": list(query.shape), "dtype": "float16"}
        body = msgspec.msgpack.encode({"collection": collection, "query": vectors, "top_k": 10})
        headers = dict.fromkeys(("content-type", "accept"), "application/msgpack")
        started = time.perf_counter()
        answer = client.post("/search", content=body, headers=headers).raise_for_status()
        totals.append(1e3 * (time.perf_counter() - started))
        engine.append(msgspec.msgpack.decode(answer.content)["meta"]["engine_ms"])
    report.add(f"{name}: engine, median", float(np.median(engine[10:])), "ms")
    report.add(f"{name}: request, p50", float(np.median(totals[10:])), "ms")


def host_tier(report: Report, medians: dict[str, float]) -> None:
    """What reading the candidates in place came to."""
    gb_per_s = medians["kernel_bytes"] / medians["kernel"] / 1e-3 / _GB
    report.add("host tier: read over the bus", gb_per_s, "GB/s", Goal(45, "at least"))
    report.add("host tier: kernel of 1,000 × ~120", medians["kernel"], "ms", Goal(0.75))
