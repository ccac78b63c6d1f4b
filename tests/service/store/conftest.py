"""A store in a temporary directory, with segments of a few documents, and ways to look at all of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from maxsim_serve.metrics import Metrics
from maxsim_serve.store import Collection, CollectionSpec, NewDocument, Store

DIM = 16
SEGMENT_ROWS = 64
ROW_BYTES = DIM * 2

Contents = dict[str, tuple[bytes, str | None, bytes | None, int]]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def open_store(tmp_path: Path, metrics: Metrics) -> Iterator[Callable[..., Store]]:
    """Opens stores and closes them when the test ends. Never compacts by itself unless it is told to."""
    opened: list[Store] = []

    def open_one(directory: Path = tmp_path / "data", **settings: object) -> Store:
        defaults: dict[str, object] = {
            "segment_bytes": SEGMENT_ROWS * ROW_BYTES,
            "compact_dead_share": 1.0,
            "budget_bytes": 1 << 24,
            "metrics": metrics,
        }
        store = Store.open(directory, **(defaults | settings))  # type: ignore[arg-type]
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store()


@pytest.fixture
def papers(store: Store) -> Collection:
    return store.create_collection(CollectionSpec("papers", DIM))


@pytest.fixture
def filled() -> Callable[..., NewDocument]:
    """A document whose every value is `value`, so that a torn one shows."""

    def make(id: str, value: float, rows: int = 5, text: str | None = None) -> NewDocument:
        return NewDocument(id, np.full((rows, DIM), value, np.float32), text, None)

    return make


@pytest.fixture
def put() -> Callable[..., list[int]]:
    def put_all(collection: Collection, *documents: NewDocument) -> list[int]:
        prepared = collection.prepare(documents)
        assert not prepared.rejected
        return collection.commit(prepared)

    return put_all


@pytest.fixture
def contents() -> Callable[[Collection], Contents]:
    """All that is in a collection, by id, in the order of insertion; the two ways to read it must agree."""

    def read(collection: Collection) -> Contents:
        snapshot = collection.snapshot()
        rows: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(snapshot.ids)
        for part in snapshot.parts:
            for start, length, position in zip(part.starts, part.lengths, part.positions, strict=True):
                rows[position] = part.tokens[start : start + length].float().numpy()
        everything: Contents = {}
        for id, vectors in zip(snapshot.ids, rows, strict=True):
            document = collection.get(id)
            np.testing.assert_array_equal(document.vectors, vectors)
            everything[id] = (vectors.tobytes(), document.text, document.payload, document.generation)
        return everything

    return read
