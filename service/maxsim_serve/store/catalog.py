"""The SQLite catalog: which documents exist, and which rows are theirs. What it says is what is stored."""

import queue
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import InDoubt, ServiceError
from .space import full_disk_raises
from .spec import CollectionSpec

__all__ = ["Catalog", "Content", "DocumentRow", "Transaction"]

_VERSION = 2
_SCHEMA = f"""
CREATE TABLE collections (
    collection_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    dim INTEGER NOT NULL, dtype TEXT NOT NULL, normalize INTEGER NOT NULL, generation INTEGER NOT NULL,
    tier TEXT NOT NULL DEFAULT 'auto');
CREATE TABLE segments (
    segment_id INTEGER PRIMARY KEY, collection_id INTEGER NOT NULL, rows INTEGER NOT NULL);
CREATE TABLE documents (
    document_id INTEGER PRIMARY KEY, collection_id INTEGER NOT NULL, id BLOB NOT NULL,
    generation INTEGER NOT NULL, segment_id INTEGER NOT NULL, row_start INTEGER NOT NULL,
    rows INTEGER NOT NULL, crc32 INTEGER NOT NULL, text TEXT, payload BLOB,
    UNIQUE (collection_id, id));
PRAGMA user_version = {_VERSION};
"""
_FROM_VERSION_1 = f"""
ALTER TABLE collections ADD COLUMN tier TEXT NOT NULL DEFAULT 'auto';
PRAGMA user_version = {_VERSION};
"""
_UPSERT = """
INSERT INTO documents (collection_id, id, generation, segment_id, row_start, rows, crc32, text, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (collection_id, id) DO UPDATE SET
    generation = excluded.generation, segment_id = excluded.segment_id, row_start = excluded.row_start,
    rows = excluded.rows, crc32 = excluded.crc32, text = excluded.text, payload = excluded.payload
"""
_IDS_PER_SELECT = 10_000  # SQLite takes 32,766 values a statement

DocumentRow = tuple[bytes, int, int, int, int, int, str | None, bytes | None]
"""id, generation, segment_id, row_start, rows, crc32, text, payload."""


@dataclass(frozen=True, slots=True)
class Content:
    """What the catalog alone holds of a document."""

    generation: int
    text: str | None
    payload: bytes | None


class Transaction:
    """The changes that can be made; all of one transaction are durable together, or none."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def create_collection(self, spec: CollectionSpec) -> int:
        values = (spec.name, spec.dim, spec.dtype, spec.normalize, spec.tier)
        cursor = self._db.execute(
            "INSERT INTO collections (name, dim, dtype, normalize, tier, generation) "
            "VALUES (?, ?, ?, ?, ?, 0)",
            values,
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def drop_collection(self, collection_id: int) -> None:
        for table in ("documents", "segments", "collections"):
            self._db.execute(f"DELETE FROM {table} WHERE collection_id = ?", (collection_id,))

    def set_generation(self, collection_id: int, generation: int) -> None:
        values = (generation, collection_id)
        self._db.execute("UPDATE collections SET generation = ? WHERE collection_id = ?", values)

    def set_segment_rows(self, collection_id: int, segment_rows: Mapping[int, int]) -> None:
        self._db.executemany(
            "INSERT INTO segments (segment_id, collection_id, rows) VALUES (?, ?, ?) "
            "ON CONFLICT (segment_id) DO UPDATE SET rows = excluded.rows",
            [(segment_id, collection_id, rows) for segment_id, rows in segment_rows.items()],
        )

    def drop_segment(self, segment_id: int) -> None:
        self._db.execute("DELETE FROM segments WHERE segment_id = ?", (segment_id,))

    def upsert_documents(self, collection_id: int, documents: Iterable[DocumentRow]) -> None:
        """A document that is there keeps its place in the order of insertion."""
        self._db.executemany(_UPSERT, ((collection_id, *document) for document in documents))

    def move_documents(self, collection_id: int, places: Iterable[tuple[int, int, bytes]]) -> None:
        """`places`: segment_id, row_start, id."""
        self._db.executemany(
            "UPDATE documents SET segment_id = ?, row_start = ? WHERE collection_id = ? AND id = ?",
            ((segment_id, start, collection_id, id) for segment_id, start, id in places),
        )

    def delete_documents(self, collection_id: int, ids: Iterable[bytes]) -> None:
        values = ((collection_id, id) for id in ids)
        self._db.executemany("DELETE FROM documents WHERE collection_id = ? AND id = ?", values)


class Catalog:
    """One connection that writes, under a lock; connections that read, one for each reader at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._in_doubt: Exception | None = None
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._writer = self._connect()
        with full_disk_raises(path.parent):
            self._writer.execute("PRAGMA journal_mode = WAL")
            (version,) = self._writer.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._writer.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
            elif version == 1:
                self._writer.executescript(f"BEGIN; {_FROM_VERSION_1} COMMIT;")
            elif version != _VERSION:
                self._writer.close()
                raise ServiceError(
                    f"{path} is of version {version}; this release reads version {_VERSION}",
                    code="store_version",
                )

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Durable when the body has ended. Raises OutOfSpace on a full disk, and then nothing has changed."""
        with self._lock, full_disk_raises(self._path.parent):
            self.require_certain()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(self._writer)
                self._commit()
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def require_certain(self) -> None:
        """Raises InDoubt. To ask before rows are written where those of the commit in doubt may be."""
        if self._in_doubt is not None:
            raise InDoubt(
                f"a commit to {self._path} failed ({self._in_doubt}), and only a restart can tell whether "
                "it is on disk: mend the disk and restart the service",
                param="data_dir",
            )

    def _commit(self) -> None:
        try:
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            # On a full disk the commit mark was not written. After any other failure it may have been, and a
            # crash would then bring this transaction back: its rows must not be written over meanwhile.
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise
            self._in_doubt = error
            self.require_certain()

    def collections(self) -> list[tuple[int, CollectionSpec, int]]:
        """(collection_id, spec, generation), in the order of creation."""
        with self._reader() as db:
            rows = db.execute(
                "SELECT collection_id, generation, name, dim, dtype, normalize, tier FROM collections "
                "ORDER BY collection_id"
            ).fetchall()
        return [
            (collection_id, CollectionSpec(name, dim, dtype, bool(normalize), tier), generation)
            for collection_id, generation, name, dim, dtype, normalize, tier in rows
        ]

    def segments(self) -> list[tuple[int, int, int]]:
        """(segment_id, collection_id, committed rows)."""
        with self._reader() as db:
            return db.execute("SELECT segment_id, collection_id, rows FROM segments").fetchall()

    def documents(self) -> Iterator[tuple[int, bytes, int, int, int, int, int, int]]:
        """In the order of insertion.

        (collection_id, id, document_id, segment_id, row_start, rows, generation, crc32)
        """
        with self._reader() as db:
            yield from db.execute(
                "SELECT collection_id, id, document_id, segment_id, row_start, rows, generation, crc32 "
                "FROM documents ORDER BY document_id"
            )

    def name_of(self, document_id: int) -> str:
        """A document for an error message: its id and its collection."""
        with self._reader() as db:
            name, id = db.execute(
                "SELECT name, id FROM documents JOIN collections USING (collection_id) WHERE document_id = ?",
                (document_id,),
            ).fetchone()
        return f"{id.decode()!r} of collection {name!r}"

    def contents(self, collection_id: int, ids: Sequence[bytes]) -> dict[bytes, Content]:
        """Of the ids that are there."""
        found: dict[bytes, Content] = {}
        with self._reader() as db:
            for first in range(0, len(ids), _IDS_PER_SELECT):
                chunk = ids[first : first + _IDS_PER_SELECT]
                rows = db.execute(
                    "SELECT id, generation, text, payload FROM documents "
                    f"WHERE collection_id = ? AND id IN ({','.join('?' * len(chunk))})",
                    (collection_id, *chunk),
                )
                found.update(
                    {id: Content(generation, text, payload) for id, generation, text, payload in rows}
                )
        return found

    def close(self) -> None:
        """For when nobody reads or writes any more; the last connection folds the log into the database."""
        while not self._readers.empty():
            self._readers.get().close()
        self._writer.close()

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._readers.get_nowait()
        except queue.Empty:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._readers.put(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -16384")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
        return connection
