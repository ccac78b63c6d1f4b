"""A full disk and a full memory budget: the write fails whole, reads go on, and writes resume."""

import errno
import os
import sqlite3
import subprocess
from pathlib import Path

import numpy as np
import pytest

from maxsim_serve.errors import InDoubt, OutOfSpace
from maxsim_serve.store import CollectionSpec, NewDocument

DIM, ROW_BYTES = 16, 32


class FailingDatabase:
    """A connection whose COMMIT fails."""

    def __init__(self, connection, code):
        self._connection, self._code = connection, code

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, sql, *values):
        if sql == "COMMIT":
            error = sqlite3.OperationalError("made to fail")
            error.sqlite_errorcode = self._code
            raise error
        return self._connection.execute(sql, *values)


def fail(call, code, *, after_bytes=None):
    """The call as it is, failing: at once, or after a part of what it was to write."""

    def failing(fd, *args):
        if after_bytes is not None and call is os_pwrite:
            call(fd, args[0][:after_bytes], args[1])
        raise OSError(code, os.strerror(code))

    return failing


os_pwrite = os.pwrite


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "fsync", "open"])
def test_a_full_disk_fails_the_write_and_nothing_else(
    call, code, papers, put, filled, contents, monkeypatch, tmp_path
):
    put(papers, *(filled(f"d{n}", n) for n in range(11)))
    before, info = list(contents(papers).items()), papers.info()
    more = papers.prepare([filled("d3", 99), *(filled(f"n{n}", n) for n in range(30))])
    with monkeypatch.context() as full:
        full.setattr(os, call, fail(getattr(os, call), code, after_bytes=17))
        for _ in range(3):
            with pytest.raises(OutOfSpace, match=r"disk .* is full") as caught:
                papers.commit(more)
            assert caught.value.param == "data_dir"
            assert papers.info() == info
            assert [id for id, _ in before] == list(papers.snapshot().ids)
    assert list(contents(papers).items()) == before
    assert [p.stat().st_size for p in (tmp_path / "data/segments").iterdir()] == [55 * ROW_BYTES]
    papers.commit(more)
    assert papers.info().documents == 41 and papers.get("d3").vectors[0, 0] == 99


def test_a_full_disk_under_the_catalog(open_store, store, papers, put, filled, contents):
    put(papers, filled("a", 1))
    before = contents(papers)
    catalog = store._catalog
    working = catalog._writer
    catalog._writer = FailingDatabase(working, sqlite3.SQLITE_FULL)
    for refused in (lambda: put(papers, filled("a", 2)), lambda: papers.delete(["a"])):
        with pytest.raises(OutOfSpace, match=r"disk .* is full"):
            refused()
        assert contents(papers) == before
    assert store.resident_bytes == papers.info().bytes == 5 * ROW_BYTES
    catalog._writer = working
    put(papers, filled("a", 3))
    store.close()
    assert open_store().collection("papers").get("a").vectors[0, 0] == 3


def test_a_commit_in_doubt_stops_writes_until_a_restart(
    open_store, store, papers, put, filled, contents, tmp_path
):
    put(papers, filled("a", 0))
    put(papers, filled("a", 1))
    before = contents(papers)
    working = store._catalog._writer
    store._catalog._writer = FailingDatabase(working, sqlite3.SQLITE_IOERR)
    with pytest.raises(InDoubt, match="restart the service"):
        put(papers, filled("a", 2))
    store._catalog._writer = working
    for refused in (lambda: put(papers, filled("b", 2)), lambda: papers.delete(["a"]), papers.compact):
        with pytest.raises(InDoubt):
            refused()
    assert contents(papers) == before
    # The rows stay where they are: the catalog may yet turn out to name them.
    assert (tmp_path / "data/segments/1.rows").stat().st_size == 15 * ROW_BYTES
    store.close()
    assert contents(open_store().collection("papers")) == before


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full(small_disk, open_store, put, contents):
    rng = np.random.default_rng(5)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 19))
    with open_store(small_disk / "data", segment_bytes=1 << 18) as store:
        papers = store.create_collection(CollectionSpec("papers", DIM))
        written = 0
        with pytest.raises(OutOfSpace, match=r"disk .* is full"):
            for written in range(10_000):
                vectors = rng.standard_normal((150, DIM), dtype=np.float32)
                put(papers, NewDocument(f"d{written}", vectors, "text " * 100))
        assert 20 < written < 400
        before = list(contents(papers).items())
        for _ in range(20):
            with pytest.raises(OutOfSpace):
                put(papers, NewDocument("large", rng.standard_normal((9_000, DIM), dtype=np.float32)))
        assert list(contents(papers).items()) == before
    with open_store(small_disk / "data", segment_bytes=1 << 18) as store:
        papers = store.collection("papers")
        assert list(contents(papers).items()) == before
        ballast.unlink()  # somebody makes room
        papers.delete([f"d{n}" for n in range(0, written, 2)])
        papers.compact()
        put(papers, NewDocument("after", np.ones((100, DIM), np.float32)))
        assert papers.info().documents == len(before) - (written + 1) // 2 + 1


def test_the_budget_is_checked_before_anything_is_written(open_store, put, filled, tmp_path):
    store = open_store(budget_bytes=100 * ROW_BYTES)
    papers = store.create_collection(CollectionSpec("papers", DIM))
    other = store.create_collection(CollectionSpec("other", DIM, "float32"))
    put(papers, filled("a", 1, rows=60))
    put(other, filled("a", 1, rows=10))  # 20 rows' worth
    with pytest.raises(
        OutOfSpace, match=r"672 bytes .* 2,560 of the 3,200 bytes of host_budget_bytes"
    ) as caught:
        put(papers, filled("b", 1, rows=21))
    assert caught.value.param == "host_budget_bytes"
    assert sum(p.stat().st_size for p in (tmp_path / "data/segments").iterdir()) == 80 * ROW_BYTES
    put(papers, filled("b", 1, rows=20))
    assert store.resident_bytes == store.budget_bytes == 100 * ROW_BYTES
    with pytest.raises(OutOfSpace):
        put(papers, filled("a", 2, rows=1))
    assert papers.get("a").vectors.shape == (60, DIM)


def test_a_store_full_of_dead_rows_can_be_compacted(open_store, put, filled):
    store = open_store(budget_bytes=100 * ROW_BYTES)
    papers = store.create_collection(CollectionSpec("papers", DIM))
    put(papers, *(filled(f"d{n}", n, rows=10) for n in range(10)))
    papers.delete(["d0", "d1", "d2"])
    with pytest.raises(OutOfSpace):
        put(papers, filled("more", 1, rows=30))
    assert papers.compact().freed_bytes == 30 * ROW_BYTES
    put(papers, filled("more", 1, rows=30))
    assert store.resident_bytes == store.budget_bytes


def test_a_store_that_has_outgrown_its_budget_is_not_opened(open_store, put, filled):
    store = open_store()
    put(store.create_collection(CollectionSpec("papers", DIM)), filled("a", 1, rows=50))
    store.close()
    with pytest.raises(OutOfSpace, match="host_budget_bytes"):
        open_store(budget_bytes=49 * ROW_BYTES)
    assert open_store(budget_bytes=50 * ROW_BYTES).resident_bytes == 50 * ROW_BYTES
