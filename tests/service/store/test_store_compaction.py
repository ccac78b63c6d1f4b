"""Compaction: what it frees, what it leaves alone, and that it comes by itself."""

import os
import threading
import time

import numpy as np
import pytest

from maxsim_serve.errors import Draining, OutOfSpace
from maxsim_serve.store import CollectionSpec, NewDocument

DIM, ROW_BYTES = 16, 32


def fill(papers, put, filled, count=40, rows=8):
    """Eight documents a segment."""
    for n in range(count):
        put(papers, filled(f"d{n}", n, rows=rows, text=f"text {n}"))


def test_on_command_every_dead_row_goes(open_store, store, papers, put, filled, contents, tmp_path, metrics):
    fill(papers, put, filled)
    papers.delete([f"d{n}" for n in range(40) if n % 3])
    before = list(contents(papers).items())
    report = papers.compact()
    assert list(contents(papers).items()) == before
    info = papers.info()
    assert (report.segments, report.moved_documents) == (5, 14)
    assert report.moved_bytes == 14 * 8 * ROW_BYTES
    assert report.freed_bytes == 26 * 8 * ROW_BYTES
    assert (info.segments, info.dead_bytes, info.bytes) == (2, 0, 14 * 8 * ROW_BYTES)
    files = (tmp_path / "data/segments").iterdir()
    assert sum(file.stat().st_size for file in files) == info.bytes == store.resident_bytes
    assert metrics.registry.get_sample_value("maxsim_store_compactions_total") == 5
    assert papers.compact().segments == 0
    store.close()
    assert list(contents(open_store().collection("papers")).items()) == before


def test_segments_without_dead_rows_are_left_alone(papers, put, filled, tmp_path):
    fill(papers, put, filled)
    papers.delete(["d9", "d10"])
    report = papers.compact()
    assert (report.segments, report.moved_documents) == (1, 6)
    assert sorted(p.name for p in (tmp_path / "data/segments").iterdir()) == [
        f"{n}.rows" for n in (1, 3, 4, 5, 6)
    ]


def wait_for_compaction(papers, dead_bytes):
    deadline = time.monotonic() + 10
    while papers.info().dead_bytes > dead_bytes and time.monotonic() < deadline:
        time.sleep(0.01)


def test_it_comes_by_itself_when_enough_of_a_collection_is_dead(open_store, put, filled, contents):
    store = open_store(compact_dead_share=0.1)
    papers = store.create_collection(CollectionSpec("papers", DIM))
    fill(papers, put, filled)
    papers.delete(["d0", "d1", "d8", "d16"])  # a tenth, not more
    time.sleep(0.1)
    assert papers.info().dead_bytes == 4 * 8 * ROW_BYTES
    papers.delete(["d2"])
    before = list(contents(papers).items())
    wait_for_compaction(papers, 8 * ROW_BYTES)
    # Two segments are enough to be under half of the limit: the third is left alone.
    assert papers.info().dead_bytes == 8 * ROW_BYTES
    assert list(contents(papers).items()) == before


def test_dead_rows_left_by_an_earlier_run_are_compacted_on_opening(open_store, put, filled):
    store = open_store()
    papers = store.create_collection(CollectionSpec("papers", DIM))
    fill(papers, put, filled)
    papers.delete([f"d{n}" for n in range(16)])
    store.close()
    papers = open_store(compact_dead_share=0.3).collection("papers")
    wait_for_compaction(papers, 0)
    assert (papers.info().dead_bytes, papers.info().segments) == (0, 3)


@pytest.mark.parametrize("share_replaced", [0.02, 0.3, 1.0])
def test_memory_follows_the_tokens_through_heavy_churn(open_store, share_replaced):
    """25 rounds of updates, deletions and insertions: the bytes in use stay within 1.2 of the live."""
    store = open_store(segment_bytes=1 << 18, compact_dead_share=0.125, budget_bytes=1 << 26)
    papers = store.create_collection(CollectionSpec("papers", DIM))
    rng = np.random.default_rng(4)
    serial, expected = 0, {}

    def write(ids):
        nonlocal serial
        documents = []
        for id in ids:
            serial += 1
            expected[id] = (int(rng.integers(1, 300)), serial % 2000)
            documents.append(NewDocument(id, np.full((expected[id][0], DIM), serial % 2000, np.float32)))
        papers.commit(papers.prepare(documents))

    write(f"d{n}" for n in range(400))
    for round_number in range(25):
        chosen = rng.permutation(sorted(expected))[: max(1, int(share_replaced * len(expected)))].tolist()
        half = len(chosen) // 2
        if half:
            papers.delete(chosen[:half])
        for id in chosen[:half]:
            del expected[id]
        write(chosen[half:] + [f"r{round_number}-{n}" for n in range(half)])
    live_bytes = sum(rows for rows, _value in expected.values()) * ROW_BYTES
    used_bytes = 1 << 62
    deadline = time.monotonic() + 10
    while used_bytes > 1.2 * live_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
        used_bytes = store._tiers["host"].extents.used_bytes
    assert papers.info().tokens * ROW_BYTES == live_bytes
    assert live_bytes <= used_bytes <= 1.2 * live_bytes
    for id, (rows, value) in expected.items():
        vectors = papers.get(id).vectors
        assert vectors.shape == (rows, DIM) and (vectors == value).all()


def test_readers_keep_a_compacted_segment(papers, put, filled):
    fill(papers, put, filled)
    held = papers.locate(["d0", "d20"])
    papers.delete([f"d{n}" for n in range(40)])
    papers.compact()
    assert papers.info().segments == 0
    fill(papers, put, filled, count=60, rows=3)
    (part,) = held.parts
    assert part.tokens[part.starts, 0].tolist() == [0, 20]


def test_a_full_disk_stops_it_halfway_and_it_resumes(papers, put, filled, contents, monkeypatch):
    monkeypatch.setattr("maxsim_serve.store.compact._STEP_BYTES", 16 * ROW_BYTES)
    fill(papers, put, filled)
    papers.delete([f"d{n}" for n in range(0, 40, 2)])
    before = list(contents(papers).items())
    with monkeypatch.context() as full:
        real, calls = os.pwrite, []

        def pwrite(*args):
            calls.append(args)
            if len(calls) > 3:
                raise OSError(28, "No space left on device")
            return real(*args)

        full.setattr("os.pwrite", pwrite)
        with pytest.raises(OutOfSpace):
            papers.compact()
    assert len(calls) == 4
    assert list(contents(papers).items()) == before
    papers.compact()
    assert list(contents(papers).items()) == before
    assert papers.info().dead_bytes == 0


def test_closing_ends_a_compaction_at_its_next_step(store, papers, put, filled, monkeypatch):
    monkeypatch.setattr("maxsim_serve.store.compact._STEP_BYTES", 1)  # a document a step
    fill(papers, put, filled)
    papers.delete([f"d{n}" for n in range(0, 40, 8)])
    closing = threading.Timer(0.0, store.close)
    monkeypatch.setattr("maxsim_serve.store.compact._PAUSE_S", 0.2)
    closing.start()
    with pytest.raises(Draining, match="closed"):
        papers.compact()
    closing.join()
