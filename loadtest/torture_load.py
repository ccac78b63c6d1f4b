"""The load of the torture: documents that anyone can make again from id and version, and who writes them.

As a program it is the process that is killed (`load`) or the fresh one that looks (`dump`), for `torture.py`.
"""

import argparse
import base64
import hashlib
import http.client
import json
import os
import random
import sys
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import numpy as np

from maxsim_serve.metrics import Metrics
from maxsim_serve.store import CollectionSpec, NewDocument, Store

__all__ = [
    "COLLECTION",
    "DEAD_SHARE",
    "DIM",
    "SEGMENT_BYTES",
    "WORKERS",
    "HttpTarget",
    "digest",
    "make",
    "work",
]

COLLECTION, DIM = "torture", 32
SEGMENT_BYTES, DEAD_SHARE = 64 << 10, 0.3  # small, so that compaction hardly ever rests
WORKERS, IDS_PER_WORKER = 4, 60
VERSIONS_PER_ROUND = 1_000_000

Record = Callable[[int, str, object], None]
"""Called with (worker, 'put' | 'delete' | 'done', what)."""


def make(id: str, version: int) -> NewDocument:
    """Values are multiples of 1/64 below 8, so that float16 holds them exactly."""
    rng = np.random.default_rng([zlib.crc32(id.encode()), version])
    vectors = rng.integers(-511, 512, (int(rng.integers(1, 60)), DIM)).astype(np.float32) / 64
    payload = json.dumps({"version": version, "id": id}).encode()
    return NewDocument(id, vectors, f"{id} in version {version} " * int(rng.integers(1, 20)), payload)


def digest(vectors: np.ndarray, text: str | None, payload: object) -> str:
    """Of everything in a document: two that differ in a bit have other digests."""
    whole = [np.asarray(vectors, np.float32).tobytes().hex(), text, payload]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


class Target(Protocol):
    def put(self, documents: Sequence[NewDocument]) -> None: ...
    def delete(self, ids: Sequence[str]) -> None: ...


class StoreTarget:
    def __init__(self, store: Store) -> None:
        self._collection = store.create_collection(CollectionSpec(COLLECTION, DIM))

    def put(self, documents: Sequence[NewDocument]) -> None:
        prepared = self._collection.prepare(documents)
        assert not prepared.rejected
        self._collection.commit(prepared)

    def delete(self, ids: Sequence[str]) -> None:
        self._collection.delete(ids)


class HttpTarget:
    """One connection to a service. Raises OSError or HTTPException once the service is dead."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def put(self, documents: Sequence[NewDocument]) -> None:
        self.call("PUT", f"/collections/{COLLECTION}/documents", {"documents": [_wire(d) for d in documents]})

    def delete(self, ids: Sequence[str]) -> None:
        self.call("POST", f"/collections/{COLLECTION}/documents/delete", {"ids": list(ids)})

    def get(self, id: str) -> str | None:
        """The digest of a stored document."""
        found = self.call("GET", f"/collections/{COLLECTION}/documents/{quote(id, safe='')}", missing_ok=True)
        return digest(np.array(found["vectors"]), found.get("text"), found["payload"]) if found else None

    def call(self, method: str, path: str, body: object = None, *, missing_ok: bool = False) -> dict:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {"content-type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status == 404 and missing_ok:
            return {}
        if response.status not in (200, 201):
            raise AssertionError(f"{method} {path} answered {response.status}: {answer[:300]!r}")
        return json.loads(answer)


def _wire(document: NewDocument) -> Mapping[str, object]:
    vectors = document.vectors
    data = {"data": base64.b64encode(vectors.tobytes()).decode(), "shape": vectors.shape, "dtype": "float32"}
    assert document.payload is not None
    return {
        "id": document.id,
        "vectors": data,
        "text": document.text,
        "payload": json.loads(document.payload),
    }


def work(worker: int, round: int, seed: int, target: Target, record: Record, stop: threading.Event) -> None:
    """Upserts, updates and deletes of this worker's own ids. Each is recorded before, and when it is done."""
    rng = random.Random(f"{seed}/{round}/{worker}")
    ids = [f"w{worker}/{n}" for n in range(IDS_PER_WORKER)]
    version = round * VERSIONS_PER_ROUND
    while not stop.is_set():
        some = rng.sample(ids, rng.randint(1, 6))
        version += 1
        if rng.random() < 0.75:
            record(worker, "put", dict.fromkeys(some, version))
            target.put([make(id, version) for id in some])
        else:
            record(worker, "delete", some)
            target.delete(some)
        record(worker, "done", None)


def _open(data_dir: Path) -> Store:
    return Store.open(
        data_dir,
        segment_bytes=SEGMENT_BYTES,
        compact_dead_share=DEAD_SHARE,
        budget_bytes=1 << 30,
        metrics=Metrics(),
    )


def _load(data_dir: Path, round: int, seed: int) -> None:
    def record(worker: int, what: str, details: object) -> None:
        os.write(1, json.dumps([worker, what, details]).encode() + b"\n")  # one call: lines stay whole

    target = StoreTarget(_open(data_dir))
    never = threading.Event()
    for worker in range(WORKERS):
        threading.Thread(target=work, args=(worker, round, seed, target, record, never)).start()


def _dump(data_dir: Path) -> None:
    print("opening", flush=True)
    with _open(data_dir) as store:
        collection = store.create_collection(CollectionSpec(COLLECTION, DIM))
        found = map(collection.get, collection.snapshot().ids)
        digests = {d.id: digest(d.vectors, d.text, json.loads(d.payload or b"null")) for d in found}
        info = collection.info()
        json.dump({"digests": digests, "documents": info.documents, "segments": info.segments}, sys.stdout)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("load", "dump"))
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--round", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.role == "load":
        _load(args.data_dir, args.round, args.seed)
    else:
        _dump(args.data_dir)


if __name__ == "__main__":
    _main()
