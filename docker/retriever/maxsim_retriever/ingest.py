"""A JSONL corpus into both: the texts to PostgreSQL, the same texts to the reranker, which encodes them.

A line is `{"id" or "_id", "text", "title"?}`. A batch is committed in PostgreSQL once the reranker has stored
it, so that a candidate is always known there. Running it again is safe.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import psycopg

from .database import Document, create_schema, upsert
from .reranker import retry_after_s

__all__ = ["IngestFailed", "Stored", "ingest", "read"]

_TRIES = 8
_LONGEST_PAUSE_S = 30.0
_DOES_NOT_EXIST = 404


class IngestFailed(Exception):
    """The message names the line, or what the reranker answered."""


@dataclass(frozen=True)
class Stored:
    """One batch: how many documents are in both now, and why each of the others is in neither."""

    documents: int
    refused: list[str]


def read(lines: Iterable[str]) -> Iterator[Document]:
    """Raises IngestFailed at the first line that is no document."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            id = entry["id"] if "id" in entry else entry["_id"]
            document = Document(str(id), entry.get("title") or "", entry["text"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IngestFailed(f"line {number}: {error!r}; wanted: id or _id, text, title?") from None
        if not (isinstance(document.title, str) and isinstance(document.text, str)):
            raise IngestFailed(f"line {number}: title and text must be strings")
        yield document


def ingest(
    documents: Iterable[Document],
    *,
    database_url: str,
    http: httpx.Client,
    collection: str,
    batch_documents: int,
) -> Iterator[Stored]:
    """One `Stored` a batch, which stays. Raises IngestFailed, httpx.TransportError, psycopg.Error."""
    path = f"/collections/{quote(collection, safe='')}"
    with psycopg.connect(database_url) as connection:
        create_schema(connection)
        connection.commit()
        if _send(http, "GET", path).status_code == _DOES_NOT_EXIST:
            _must_succeed(_send(http, "PUT", path, {}))
        for batch in _batches(documents, batch_documents):
            errors = _put(http, path, batch)
            accepted = [document for i, document in enumerate(batch) if i not in errors]
            upsert(connection, accepted)
            connection.commit()
            yield Stored(len(accepted), [f"{batch[i].id}: {why}" for i, why in errors.items()])


def _put(http: httpx.Client, path: str, batch: Sequence[Document]) -> dict[int, str]:
    """Why each refused document was refused, by its position."""
    texts = [{"id": d.id, "text": f"{d.title} {d.text}".strip()} for d in batch]
    answer = _send(http, "PUT", f"{path}/documents", {"documents": texts})
    body: dict[str, Any] = answer.json()
    errors = {int(error["index"]): str(error["message"]) for error in body.get("errors", [])}
    if len(errors) < len(batch):
        _must_succeed(answer)
    return errors


def _send(http: httpx.Client, method: str, path: str, body: Any = None) -> httpx.Response:
    """The answer, after waiting as often as a busy or starting reranker asks for."""
    for number in range(1, _TRIES + 1):
        answer = http.request(method, path, json=body)
        if answer.status_code not in (429, 503) or number == _TRIES:
            return answer
        wait_s = retry_after_s(answer.headers.get("retry-after"))
        time.sleep(min(2.0**number if wait_s is None else wait_s, _LONGEST_PAUSE_S))
    raise AssertionError("unreachable: the last try returns")


def _must_succeed(answer: httpx.Response) -> None:
    if not answer.is_success:
        raise IngestFailed(f"the reranker answered {answer.status_code}: {answer.text[:300]}")


def _batches(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for document in documents:
        batch.append(document)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
