"""What an import reads and sends: documents with their place in the file, batches of them, request bodies."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

__all__ = ["START", "Batch", "Place", "Record", "Source", "Unreadable", "batches", "body_of"]

_SAFETENSORS = "application/vnd.safetensors"


class Place(NamedTuple):
    """Where reading goes on: bytes of the file consumed, and documents (or lines) consumed."""

    offset_bytes: int
    number: int


START = Place(0, 0)


@dataclass(frozen=True)
class Record:
    """One document. `content` is a text to encode, or its vectors [n, dim] float16 or float32."""

    label: str  # what a person would look for: "line 7" or "document 7"
    id: str
    content: str | NDArray[Any]
    next: Place
    text: str | None = None  # kept beside the vectors
    payload: object = None

    @property
    def size_bytes(self) -> int:
        return len(self.content) if isinstance(self.content, str) else self.content.nbytes

    @property
    def form(self) -> tuple[object, ...]:
        """Records of one form can share a request."""
        return ("text",) if isinstance(self.content, str) else (self.content.dtype, self.content.shape[1])


@dataclass(frozen=True)
class Unreadable:
    """An entry that is no document; it is reported, and the import goes on."""

    label: str
    message: str
    next: Place


class Source(Protocol):
    """A file of documents, read as a stream."""

    @property
    def total_bytes(self) -> int:
        """`Place.offset_bytes` at the end."""

    def read(self, start: Place) -> Iterator[Record | Unreadable]:
        """The entries from `start` on, one at a time."""


@dataclass
class Batch:
    """What one request carries, with the unreadable entries met on the way."""

    records: list[Record] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    next: Place = START


def batches(
    entries: Iterable[Record | Unreadable], *, most_documents: int | None, most_bytes: int
) -> Iterator[Batch]:
    """Consecutive entries, cut where the form changes or a limit is reached.

    `most_documents` None: 64 texts, which take some seconds to encode, or 1,024 matrices.
    """
    batch, size_bytes = Batch(), 0
    for entry in entries:
        if isinstance(entry, Record):
            most = most_documents or (64 if isinstance(entry.content, str) else 1024)
            full = len(batch.records) >= most or size_bytes + entry.size_bytes > most_bytes
            if batch.records and (full or batch.records[0].form != entry.form):
                yield batch
                batch, size_bytes = Batch(next=batch.next), 0
            batch.records.append(entry)
            size_bytes += entry.size_bytes
        else:
            batch.unreadable.append(entry)
        batch.next = entry.next
    if batch.records or batch.unreadable:
        yield batch


def body_of(records: Sequence[Record]) -> tuple[bytes, str]:
    """The upsert request of records of one form: its body and content type."""
    if isinstance(records[0].content, str):
        documents = [
            {"id": r.id, "text": r.content} | ({} if r.payload is None else {"payload": r.payload})
            for r in records
        ]
        return json.dumps({"documents": documents}).encode(), "application/json"
    matrices = [np.asarray(record.content) for record in records]
    metadata = {"ids": json.dumps([record.id for record in records])}
    if any(record.text is not None for record in records):
        metadata["texts"] = json.dumps([record.text for record in records])
    if any(record.payload is not None for record in records):
        metadata["payloads"] = json.dumps([record.payload for record in records])
    tensors = {
        "tokens": np.concatenate(matrices),
        "lengths": np.array([len(matrix) for matrix in matrices], dtype=np.int64),
    }
    return save(tensors, metadata), _SAFETENSORS
