"""Batches of documents into a collection, with what the service refused of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .client import Client, RequestFailed, collection_path
from .journal import Progress
from .records import Batch, Record, body_of

__all__ = ["Refused", "upload"]


@dataclass(frozen=True)
class Refused:
    """One document that was not stored."""

    label: str
    id: str | None
    message: str

    def __str__(self) -> str:
        return (
            f"{self.label}: {self.message}"
            if self.id is None
            else f"{self.label}, id {self.id!r}: {self.message}"
        )


def upload(
    client: Client, collection: str, pending: Iterable[Batch], begun: Progress
) -> Iterator[tuple[Progress, list[Refused]]]:
    """Send each batch, and yield where the import stands once it is acknowledged, with what was refused."""
    progress = begun
    for batch in pending:
        refused = [Refused(entry.label, None, entry.message) for entry in batch.unreadable]
        total = progress.total
        if batch.records:
            rejected, total = _send(client, collection, batch.records, total)
            refused += rejected
        stored = len(batch.records) + len(batch.unreadable) - len(refused)
        progress = Progress(
            *batch.next, stored=progress.stored + stored, refused=progress.refused + len(refused), total=total
        )
        yield progress, refused


def _send(
    client: Client, collection: str, records: Sequence[Record], total: int
) -> tuple[list[Refused], int]:
    """Upsert records of one form: those refused, and the documents the collection then holds.

    Where the service refuses a whole batch for some of its documents (setting `invalid_documents`), the
    others are sent again without them.
    """
    refused: list[Refused] = []
    while records:
        body, content_type = body_of(records)
        path = collection_path(collection, "/documents")
        try:
            answer = client.request("PUT", path, content=body, content_type=content_type)
        except RequestFailed as error:
            if not error.refusals:
                where = f"{records[0].label} to {records[-1].label}"
                raise RequestFailed(error.status, f"{where}: {error.message}") from error
            answer, remaining = {"errors": error.refusals}, records
        else:
            remaining = []
            total = answer["total"]
        listed = {error["index"]: error["message"] for error in answer.get("errors", ())}
        refused += [Refused(records[i].label, records[i].id, message) for i, message in listed.items()]
        records = [record for i, record in enumerate(remaining) if i not in listed]
    return refused, total
