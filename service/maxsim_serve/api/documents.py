"""Documents: upsert, read one, delete."""

import asyncio
import re
from collections.abc import Sequence

from fastapi import APIRouter
from msgspec import UNSET
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from ..errors import InvalidInput, QueueFull
from ..store import Collection, Prepared
from ..store import NewDocument as StoreDocument
from .answers import checked_count, payload_of
from .content import Codec, Format, format_of, read_body, reply, wants_msgpack
from .deps import ApiDeps
from .hangup import HangUp
from .openapi import documented
from .query import required_encoder
from .schemas import (
    DeleteAnswer,
    DeleteRequest,
    DocumentAnswer,
    PackedVectors,
    Refusal,
    UpsertAnswer,
    UpsertRequest,
)
from .uploads import Batch, Incoming, decode, refusal
from .wire import AllRefused

__all__ = ["add_routes"]

_DELETE: Codec[DeleteRequest] = Codec(DeleteRequest)


class _DocumentId(Convertor[str]):
    """The rest of the path, whatever it holds: ids are opaque, slashes and line ends included."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("document_id", _DocumentId())


def add_routes(router: APIRouter, deps: ApiDeps) -> None:
    uploads = asyncio.Semaphore(deps.limits.max_concurrent_uploads)

    async def upsert(request: Request) -> Response:
        collection = deps.store.collection(request.path_params["collection"])
        form = format_of(request, Format.JSON, Format.MSGPACK, Format.SAFETENSORS)
        # Taken before the body is read: it is the bodies in memory that must not pile up.
        await _acquire(uploads, deps)
        try:
            return await _upsert(request, form, collection, deps)
        finally:
            uploads.release()

    async def read(request: Request) -> Response:
        collection = deps.store.collection(request.path_params["collection"])
        return await asyncio.to_thread(_read, request, collection)

    async def delete(request: Request) -> Response:
        collection = deps.store.collection(request.path_params["collection"])
        form = format_of(request, Format.JSON, Format.MSGPACK)
        ids = _DELETE.decode(await read_body(request, deps.limits.max_body_bytes), form).ids
        checked_count(len(ids), deps.limits.max_documents_per_upsert, "ids", "max_documents_per_upsert")
        done = await asyncio.to_thread(collection.delete, ids)
        return reply(request, DeleteAnswer(done.deleted, done.missing))

    every = "/collections/{collection}/documents"
    bodies = (400, 404, 413, 415, 422)
    upserted = documented(
        UpsertRequest, UpsertAnswer, errors=(*bodies, 429, 503, 507), binary=(Format.SAFETENSORS.value,)
    )
    deleted = documented(DeleteRequest, DeleteAnswer, errors=(*bodies, 507))
    flags = {"vectors": "Whether to return the token vectors."}
    found = documented(None, DocumentAnswer, errors=(404, 422), query=flags)
    for path, handler, method, summary, shown in (
        (every, upsert, "PUT", "Store documents; 207 where some are refused", upserted),
        (f"{every}/delete", delete, "POST", "Delete documents", deleted),
        (every + "/{id:document_id}", read, "GET", "Read one document", found),
    ):
        router.add_api_route(path, handler, methods=[method], tags=["documents"], summary=summary, **shown)


async def _acquire(uploads: asyncio.Semaphore, deps: ApiDeps) -> None:
    try:
        async with asyncio.timeout(deps.limits.deadline_s):
            await uploads.acquire()
    except TimeoutError:
        raise QueueFull(
            f"{deps.limits.max_concurrent_uploads} uploads are in progress (setting max_concurrent_uploads)",
            retry_after_s=deps.limits.retry_after_s,
        ) from None


async def _upsert(request: Request, form: Format, collection: Collection, deps: ApiDeps) -> Response:
    data = await read_body(request, deps.limits.max_body_bytes, stall_s=deps.limits.deadline_s)
    batch = await asyncio.to_thread(decode, data, form, deps)
    async with HangUp(request.receive):  # encoding takes long; from here on the batch is stored all the same
        documents = await _with_vectors(batch.documents, deps)
    prepared = await asyncio.to_thread(collection.prepare, documents)
    refused = _refusals(batch, prepared)
    if refused and (deps.invalid_documents == "refuse" or not prepared.accepted):
        raise AllRefused(
            f"no document was stored, {len(refused)} of {len(refused) + len(prepared.accepted)} are invalid; "
            f"the first: {refused[0].message}",
            refused,
        )
    await asyncio.to_thread(collection.commit, prepared)
    total = collection.info().documents
    answer = UpsertAnswer(upserted=len(prepared.accepted), total=total, errors=refused or UNSET)
    return reply(request, answer, 207 if refused else 200)


async def _with_vectors(documents: Sequence[Incoming], deps: ApiDeps) -> list[StoreDocument]:
    """The documents as the store takes them; those that came as text pass the encoder together."""
    texts = [document.content for document in documents if isinstance(document.content, str)]
    encoded = iter(await required_encoder(deps.encoder, "documents").encode_documents(texts) if texts else ())
    return [
        StoreDocument(
            document.id,
            next(encoded) if isinstance(document.content, str) else document.content,
            document.text,
            document.payload,
        )
        for document in documents
    ]


def _refusals(batch: Batch, prepared: Prepared) -> list[Refusal]:
    """What decoding and the store refused, in order of index."""
    places = [document.index for document in batch.documents]
    rejected = [
        refusal(places[rejected.index], rejected.id, _renumbered(rejected.error, places))
        for rejected in prepared.rejected
    ]
    return sorted([*batch.refusals, *rejected], key=lambda refused: refused.index)


def _renumbered(error: InvalidInput, places: Sequence[int]) -> InvalidInput:
    """The store counts the documents it was given; the client sent those refused before, too."""

    def place(found: re.Match[str]) -> str:
        number = int(found[1])  # beyond the documents only where an id looks like one of them
        return f"documents[{places[number]}]" if number < len(places) else found[0]

    def number(text: str) -> str:
        return re.sub(r"\bdocuments\[(\d{1,9})\]", place, text)

    return InvalidInput(number(error.message), param=error.param and number(error.param), code=error.code)


def _read(request: Request, collection: Collection) -> Response:
    document = collection.get(request.path_params["id"])
    vectors = document.vectors
    answer = DocumentAnswer(
        id=document.id,
        tokens=len(vectors),
        generation=document.generation,
        text=UNSET if document.text is None else document.text,
        payload=payload_of(document.payload, request),
    )
    if _flag(request, "vectors", default=True):
        packed = PackedVectors(bytearray(vectors), (len(vectors), vectors.shape[1]), "float32")
        answer.vectors = packed if wants_msgpack(request) else vectors.tolist()
    return reply(request, answer)


def _flag(request: Request, name: str, *, default: bool) -> bool:
    given = request.query_params.get(name)
    if given is None:
        return default
    if given.lower() not in ("true", "false", "1", "0"):
        raise InvalidInput(f"{name} is {given!r}; use true or false", param=name)
    return given.lower() in ("true", "1")
