"""A collection under a storm of updates and reads: nothing fails, memory stays bounded, scores stay right."""

import threading
import time

import httpx
import numpy as np
from numpy.typing import NDArray

from ..scrape import read_metrics, total
from .corpus import DIM, Corpus, fill, make, put
from .rows import Goal, Report
from .wire import Connection, rerank

__all__ = ["churn"]

_SHARE = 0.3
_READERS = 2
_SETTLE_S = 1.0
_CANDIDATES = 1000


def churn(
    report: Report, client: httpx.Client, port: int, tier: str, collection_bytes: int, cycles: int
) -> None:
    """Each cycle deletes 30 % of the documents and stores as many anew, with other vectors."""
    documents = collection_bytes // (120 * 2 * DIM)
    versions = [make(documents, 60, 180, seed) for seed in (21, 22)]
    fill(client, "churn", versions[0], tier)
    version = np.zeros(documents, np.int64)
    rng = np.random.default_rng(7)
    most_ratio = 0.0
    stop = threading.Event()
    failures: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(port, documents, seed, stop, failures))
        for seed in range(_READERS)
    ]
    for reader in readers:
        reader.start()
    started = time.monotonic()
    try:
        for number in range(cycles):
            chosen = rng.permutation(documents)[: int(_SHARE * documents)]
            for some in np.array_split(chosen, -(-len(chosen) // 10_000)):
                ids = [f"d{n}" for n in some.tolist()]
                client.post("/collections/churn/documents/delete", json={"ids": ids}).raise_for_status()
            written = (number + 1) % 2
            put(client, "churn", versions[written], chosen)
            version[chosen] = written
            most_ratio = max(most_ratio, _held(client, versions, version))
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    took_s = time.monotonic() - started
    name = f"{cycles} cycles of 30 % of {collection_bytes / 1e9:.1f} GB"
    report.add(f"{name}: reads and writes that failed", len(failures), "", Goal(0))
    report.add(f"{name}: bytes held, of the live ones, the most after a cycle", most_ratio, "×")
    report.add(f"{name}: the same in the end", _settled(client, versions, version), "×", Goal(1.2))
    report.add(f"{name}: bytes a second written", cycles * _SHARE * collection_bytes / took_s / 1e6, "MB/s")
    different = _compare(client, port, tier, versions, version)
    report.add(f"{name}: scores unlike a fresh collection's", different, "", Goal(0))


def _held(client: httpx.Client, versions: list[Corpus], version: NDArray[np.int64]) -> float:
    """Bytes that the collection takes, over those of its live rows."""
    live_rows = sum(int(corpus.lengths[version == n].sum()) for n, corpus in enumerate(versions))
    held_bytes = total(read_metrics(client), "maxsim_store_bytes", collection="churn")
    assert held_bytes is not None
    return held_bytes / (live_rows * 2 * DIM)


def _settled(client: httpx.Client, versions: list[Corpus], version: NDArray[np.int64]) -> float:
    """The same once compaction has nothing left to do."""
    held, before = _held(client, versions, version), float("inf")
    while held < before:
        time.sleep(_SETTLE_S)
        held, before = _held(client, versions, version), held
    return held


def _read(port: int, documents: int, seed: int, stop: threading.Event, failures: list[str]) -> None:
    rng = np.random.default_rng(seed)
    with Connection(port) as connection:
        while not stop.is_set():
            query = rng.standard_normal((32, DIM)).astype(np.float16)
            ids = [f"d{n}" for n in rng.integers(0, documents, _CANDIDATES).tolist()]
            try:
                connection.ask(rerank("churn", query, ids))
            except (RuntimeError, OSError) as error:
                failures.append(str(error))
                return


def _compare(
    client: httpx.Client, port: int, tier: str, versions: list[Corpus], version: NDArray[np.int64]
) -> int:
    """How many scores differ between the collection and one that is filled with the same, at once."""
    spec = {"dim": DIM, "dtype": "float16", "tier": tier}
    client.put("/collections/fresh", json=spec).raise_for_status()
    for number, corpus in enumerate(versions):
        put(client, "fresh", corpus, np.flatnonzero(version == number))
    rng = np.random.default_rng(8)
    different = 0
    with Connection(port) as connection:
        for first in range(0, len(version), 10_000):
            query = rng.standard_normal((32, DIM)).astype(np.float16)
            ids = [f"d{n}" for n in range(first, min(first + 10_000, len(version)))]
            old, new = (connection.ask(rerank(name, query, ids)).scores for name in ("churn", "fresh"))
            different += sum(old[id] != new[id] for id in ids)
    return different
