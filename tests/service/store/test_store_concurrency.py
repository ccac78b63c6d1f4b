"""Readers beside writers beside compaction: everything a reader sees is of one moment, and whole."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from maxsim_serve.errors import NotFound
from maxsim_serve.store import CollectionSpec, NewDocument

DIM, ROW_BYTES = 16, 32
PAIRS = 12
CHECKS = 20  # that every reader must get to make
VERSIONS = 10  # that every pair must get to have


def value_of(part, n):
    """The one value of a document's rows; fails where they differ."""
    rows = part.tokens[part.starts[n] : part.starts[n] + part.lengths[n]].numpy()
    assert (rows == rows[0, 0]).all(), "a torn document"
    return int(rows[0, 0])


def pair(p, version):
    """Two documents that are always written together, of other lengths in each version."""
    rows = (version * 7 + p) % 23 + 1
    vectors = np.full((rows, DIM), version % 2000, np.float32)  # exact in float16
    return [NewDocument(f"p{p}/{side}", vectors, str(version % 2000)) for side in "ab"]


@pytest.fixture
def busy(open_store, put):
    """Runs readers, generators that make a check at each step, beside writers that keep replacing pairs."""
    store = open_store(segment_bytes=256 * ROW_BYTES, compact_dead_share=0.3)
    papers = store.create_collection(CollectionSpec("papers", DIM))
    for p in range(PAIRS):
        put(papers, *pair(p, 0))
    stop = threading.Event()

    def writer(worker):
        version = 0
        while True:
            version += 1
            for p in range(worker, PAIRS, 3):
                put(papers, *pair(p, version))
            yield

    def run(*readers):
        steps = [0] * (3 + len(readers))
        enough = [VERSIONS] * 3 + [CHECKS] * len(readers)

        def count(n, actor):
            try:
                for _ in actor:
                    steps[n] += 1
                    if stop.is_set():
                        return
            finally:
                stop.set()

        actors = [writer(worker) for worker in range(3)] + [reader(papers) for reader in readers]
        with ThreadPoolExecutor() as pool:
            running = [pool.submit(count, n, actor) for n, actor in enumerate(actors)]
            while not stop.is_set() and any(done < least for done, least in zip(steps, enough, strict=True)):
                time.sleep(0.01)
            stop.set()
            for actor in running:
                actor.result()

    run.store, run.papers = store, papers
    return run


def test_located_pairs_are_of_one_version(busy, metrics):
    ids = [f"p{p}/{side}" for p in range(PAIRS) for side in "ab"]

    def reader(papers):
        while True:
            located = papers.locate(ids)
            assert len(located.missing) == 0
            time.sleep(0.001)  # hold on to it while segments are compacted away
            versions = [0] * len(ids)
            for part in located.parts:
                for n, position in enumerate(part.positions.tolist()):
                    versions[position] = value_of(part, n)
            assert versions[::2] == versions[1::2]
            yield

    busy(reader, reader)
    assert metrics.registry.get_sample_value("maxsim_store_compactions_total") > 3


def test_snapshots_are_of_one_moment(busy):
    def reader(papers):
        while True:
            snapshot = papers.snapshot()
            time.sleep(0.001)
            versions = {}
            for part in snapshot.parts:
                for n, position in enumerate(part.positions.tolist()):
                    versions[snapshot.ids[position]] = value_of(part, n)
            assert len(versions) == 2 * PAIRS
            assert all(versions[f"p{p}/a"] == versions[f"p{p}/b"] for p in range(PAIRS))
            yield

    busy(reader, reader)


def test_get_returns_vectors_and_text_of_one_version(busy):
    def reader(papers):
        while True:
            for p in range(PAIRS):
                document = papers.get(f"p{p}/a")
                assert (document.vectors == int(document.text)).all()
            yield

    busy(reader, reader)


def test_compaction_brings_nothing_back(busy):
    """Documents deleted or replaced while compaction copies their segment stay deleted and replaced."""

    def churn(papers):
        n = 0
        while True:
            n += 1
            papers.commit(papers.prepare([NewDocument(f"x{n}", np.ones((40, DIM), np.float32))]))
            assert papers.delete([f"x{n}"]).deleted == [f"x{n}"]
            with pytest.raises(NotFound):
                papers.get(f"x{n}")
            yield

    def compact(papers):
        while True:
            papers.compact()
            yield

    busy(churn, compact)
    papers = busy.papers
    assert sorted(papers.snapshot().ids) == sorted(f"p{p}/{side}" for p in range(PAIRS) for side in "ab")
    papers.compact()
    info = papers.info()
    assert (info.dead_bytes, info.bytes) == (0, info.tokens * ROW_BYTES)
    assert busy.store.resident_bytes == info.bytes


def test_dropping_under_readers_and_writers(busy):
    def reader(papers):
        while True:
            (part,) = papers.locate(["p0/a"]).parts
            assert value_of(part, 0) >= 0
            yield

    def other(_papers):
        while True:
            collection = busy.store.create_collection(CollectionSpec("other", DIM))
            for version in range(5):
                collection.commit(collection.prepare(pair(version % 2, version)))
            busy.store.drop_collection("other")
            with pytest.raises(NotFound):
                collection.commit(collection.prepare(pair(0, 1)))
            assert len(collection.locate(["p0/a"]).missing) == 1
            yield

    busy(reader, other)
