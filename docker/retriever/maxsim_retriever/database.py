"""The texts in PostgreSQL, and its full-text search: any word of the query finds a document."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import AsyncConnection, Connection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

__all__ = ["Candidate", "Database", "Document", "create_schema", "upsert"]

# Two ingests that start together would both create the table: the lock makes one wait.
_SCHEMA: LiteralString = """
SELECT pg_advisory_xact_lock(7236851);
CREATE TABLE IF NOT EXISTS documents (
    id text PRIMARY KEY,
    title text NOT NULL,
    body text NOT NULL,
    words tsvector GENERATED ALWAYS AS (
        setweight(to_tsvector('english', title), 'A') || setweight(to_tsvector('english', body), 'B')
    ) STORED
);
CREATE INDEX IF NOT EXISTS documents_words ON documents USING gin (words);
"""

_UPSERT: LiteralString = """
INSERT INTO documents (id, title, body) VALUES (%s, %s, %s)
ON CONFLICT (id) DO UPDATE SET title = excluded.title, body = excluded.body
"""

# plainto_tsquery joins the words by AND, which finds next to nothing for a question: here it is OR.
# ts_rank normalized by 1 (the logarithm of the length): long documents hold every word by chance.
_SEARCH: LiteralString = """
WITH query AS (
    SELECT replace(plainto_tsquery('english', %(query)s)::text, '&', '|')::tsquery AS words
)
SELECT id, title, ts_rank(documents.words, query.words, 1) AS score
FROM documents, query
WHERE documents.words @@ query.words
ORDER BY score DESC, id
LIMIT %(limit)s
"""


@dataclass(frozen=True)
class Document:
    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Candidate:
    id: str
    title: str
    score: float


class Database:
    """A pool of connections, for searching. Open it before use; `psycopg.Error` says what went wrong."""

    def __init__(self, url: str, *, connections: int) -> None:
        self._pool: AsyncConnectionPool[AsyncConnection[TupleRow]] = AsyncConnectionPool(
            url,
            min_size=1,
            max_size=connections,
            timeout=2.0,
            open=False,
            check=AsyncConnectionPool.check_connection,
        )
        self._has_schema = False

    async def open(self) -> None:
        """Returns at once; the pool goes on trying where PostgreSQL is not there yet."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close()

    async def make_ready(self) -> None:
        """Create the table if this process has not yet; raises where a search would."""
        async with self._pool.connection() as connection:
            await connection.execute("SELECT" if self._has_schema else _SCHEMA)
        self._has_schema = True

    async def search(self, query: str, limit: int) -> list[Candidate]:
        """At most `limit` candidates, best first; ties by id. None where the query is all stop words."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(_SEARCH, {"query": query, "limit": limit})
            return [Candidate(*row) for row in await cursor.fetchall()]


def create_schema(connection: Connection[TupleRow]) -> None:
    connection.execute(_SCHEMA)


def upsert(connection: Connection[TupleRow], documents: Sequence[Document]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(_UPSERT, [(d.id, d.title, d.text) for d in documents])
