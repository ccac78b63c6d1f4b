"""Crashes. A copy of the directory, made just before and just after each step that changes the disk, is
what a `kill -9` there would leave: opened, it must hold the operation wholly or not at all.
"""

import os
import shutil
from pathlib import Path

import pytest

from maxsim_serve.errors import ServiceError
from maxsim_serve.store import CollectionSpec
from maxsim_serve.store.catalog import Catalog

DIM, ROW_BYTES = 16, 32


class Steps:
    """Wraps the calls that change the disk: notes each, and copies the directory before and after it."""

    CALLS = ("pwrite", "fdatasync", "fsync", "ftruncate", "unlink")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, copies: Path) -> None:
        self.names: list[str] = []
        self.directories: list[Path] = []
        self._directory, self._copies = directory, copies
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._step(name, getattr(os, name)))
        monkeypatch.setattr(Catalog, "_commit", self._step("commit", Catalog._commit))

    def _step(self, name, call):
        def stepped(*args, **kwargs):
            self._copy()
            result = call(*args, **kwargs)
            self.names.append(name)
            self._copy()
            return result

        return stepped

    def _copy(self) -> None:
        target = self._copies / str(len(self.directories))
        shutil.copytree(self._directory, target)
        self.directories.append(target)


def seed(store, put, filled):
    """Four segments: dead rows in all of them, and the newest with room."""
    papers = store.create_collection(CollectionSpec("papers", DIM))
    for n in range(20):
        put(papers, filled(f"d{n}", n, rows=11, text=f"text {n}"))
    for n in range(0, 20, 2):
        put(papers, filled(f"d{n}", 100 + n, rows=7))
    papers.delete(["d1", "d7"])
    return papers


def upsert(store, papers, put, filled):
    """An update, then enough new documents to fill this segment, the next, and begin a third."""
    put(papers, filled("d3", 50, rows=9), *(filled(f"n{n}", 60 + n, rows=10) for n in range(14)))


def delete(store, papers, put, filled):
    papers.delete([f"d{n}" for n in range(3, 15)])


def drop(store, papers, put, filled):
    store.drop_collection("papers")


def compact(store, papers, put, filled):
    assert papers.compact().segments >= 4


def state(store, contents):
    return {collection.spec.name: list(contents(collection).items()) for collection in store.collections()}


@pytest.mark.parametrize("operation", [upsert, delete, drop, compact])
def test_a_crash_at_any_step_leaves_all_or_nothing(
    operation, open_store, put, filled, contents, tmp_path, monkeypatch
):
    monkeypatch.setattr("maxsim_serve.store.compact._STEP_BYTES", 20 * ROW_BYTES)  # many steps a segment
    store = open_store()
    papers = seed(store, put, filled)
    before = state(store, contents)
    with monkeypatch.context() as patched:
        steps = Steps(patched, tmp_path / "data", tmp_path / "copies")
        operation(store, papers, put, filled)
    after = state(store, contents)
    assert (before == after) == (operation is compact)

    outcomes = []
    for directory in steps.directories:
        with open_store(directory) as crashed:
            found = state(crashed, contents)
            assert found in (before, after)
            outcomes.append(found == after)
            # Nothing is left behind, and the directory can be written to.
            rows = {row[0] for row in crashed._catalog.segments()}
            assert {int(path.stem) for path in (directory / "segments").iterdir()} == rows
            again = crashed.create_collection(CollectionSpec("papers", DIM))
            put(again, filled("d3", -1), filled("more", -2))
            assert again.get("more").vectors[0, 0] == -2
    if operation is not compact:
        assert outcomes == sorted(outcomes) and {True, False} == set(outcomes)
        assert outcomes.index(True) == 2 * steps.names.index("commit") + 1
    assert len(steps.directories) == 2 * len(steps.names) >= 2


def test_rows_are_on_disk_before_the_catalog_names_them(open_store, put, filled, tmp_path, monkeypatch):
    store = open_store()
    papers = store.create_collection(CollectionSpec("papers", DIM))
    with monkeypatch.context() as patched:
        steps = Steps(patched, tmp_path / "data", tmp_path / "copies")
        put(papers, filled("a", 1, rows=40))
        first, steps.names = steps.names, []
        put(papers, filled("b", 1, rows=10))
    assert first == ["pwrite", "fdatasync", "fsync", "commit"]  # a new file: its name is synced too
    assert steps.names == ["pwrite", "fdatasync", "commit"]


def test_a_torn_tail_and_unknown_files_are_removed(open_store, put, filled, contents, tmp_path):
    store = open_store()
    papers = store.create_collection(CollectionSpec("papers", DIM))
    put(papers, filled("a", 1), filled("b", 2))
    expected = contents(papers)
    store.close()
    segments = tmp_path / "data" / "segments"
    with (segments / "1.rows").open("ab") as file:
        file.write(b"torn" * 100)
    (segments / "7.rows").write_bytes(b"orphan")
    (segments / "copy.rows").write_bytes(b"orphan")
    assert contents(open_store().collection("papers")) == expected
    assert [(p.name, p.stat().st_size) for p in segments.iterdir()] == [("1.rows", 10 * ROW_BYTES)]


def test_a_changed_byte_is_found_and_the_document_named(open_store, put, filled, tmp_path):
    store = open_store()
    papers = store.create_collection(CollectionSpec("papers", DIM))
    put(papers, *(filled(f"d{n}", n) for n in range(40)))
    store.close()
    path = tmp_path / "data" / "segments" / "2.rows"
    data = bytearray(path.read_bytes())
    data[7 * 5 * ROW_BYTES] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        ServiceError, match=r"1 documents .*'d19' of collection 'papers' \(document_id 20 in 2.rows\)"
    ) as caught:
        open_store()
    assert caught.value.code == "store_damaged"
    data[7 * 5 * ROW_BYTES] ^= 1
    path.write_bytes(data)
    assert open_store().collection("papers").info().documents == 40  # the refusal let go of the lock


def test_a_file_that_lost_committed_rows_is_refused(open_store, put, filled, tmp_path):
    store = open_store()
    put(store.create_collection(CollectionSpec("papers", DIM)), filled("a", 1))
    store.close()
    os.truncate(tmp_path / "data" / "segments" / "1.rows", ROW_BYTES)
    with pytest.raises(ServiceError, match=r"1\.rows holds 32 bytes, but the catalog has committed 160"):
        open_store()


def test_a_catalog_of_another_version_is_refused(open_store, tmp_path):
    store = open_store()
    store._catalog._writer.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(ServiceError, match="version 99; this release reads version 2"):
        open_store()


def test_progress_is_told_while_loading(open_store, put, filled, monkeypatch):
    monkeypatch.setattr("maxsim_serve.store.loading._READ_BYTES", 30 * ROW_BYTES)
    store = open_store()
    papers = store.create_collection(CollectionSpec("papers", DIM))
    put(papers, *(filled(f"d{n}", n) for n in range(40)))
    store.close()
    told = []
    open_store(on_progress=lambda loaded, total: told.append((loaded, total)))
    assert len(told) > 4 and told == sorted(told)
    assert {total for _loaded, total in told} == {200 * ROW_BYTES} and told[-1][0] == 200 * ROW_BYTES


def test_a_smaller_segment_size_opens_what_a_larger_one_wrote(open_store, put, filled, contents):
    store = open_store(segment_bytes=1 << 20)
    papers = store.create_collection(CollectionSpec("papers", DIM))
    put(papers, *(filled(f"d{n}", n) for n in range(100)))
    expected = contents(papers)
    store.close()
    papers = open_store(segment_bytes=ROW_BYTES * 8).collection("papers")
    put(papers, filled("new", 7))
    assert papers.info().segments == 2
    got = contents(papers)
    assert got.pop("new") and got == expected
