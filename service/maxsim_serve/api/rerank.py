"""POST /rerank: candidates, stored or sent along, in the order of their scores."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from msgspec import UNSET, Raw
from starlette.requests import Request
from starlette.responses import Response

from ..engine import Candidates, InlineCandidates, Ranking, StoredCandidates
from ..errors import InvalidInput
from ..store import Collection
from .answers import answer, checked_count, ranked, show_stored
from .content import Codec, Format, format_of, read_body, wants_msgpack
from .deps import ApiDeps, Limits
from .hangup import HangUp
from .openapi import documented
from .query import (
    Clock,
    Content,
    Matrix,
    TextOrMatrix,
    encoded_documents,
    encoded_query,
    finite,
    parsed_document,
    parsed_query,
)
from .rows import rows
from .schemas import (
    Answer,
    Document,
    InlineDocument,
    NestedVectors,
    PackedVectors,
    RerankRequest,
    Result,
)

__all__ = ["add_routes"]

# Parsing this much holds the event loop for some two milliseconds, where it is numbers in lists; more goes to
# a thread, which takes a tenth of one to come back. A page's query packed, and a thousand ids, are less.
_OFF_LOOP_BYTES = {Format.JSON: 256 << 10, Format.MSGPACK: 384 << 10}

_REQUEST: Codec[RerankRequest] = Codec(RerankRequest)
_INLINE: Codec[str | NestedVectors | InlineDocument] = Codec(str | NestedVectors | InlineDocument)


def add_routes(router: APIRouter, deps: ApiDeps) -> None:
    async def rerank(request: Request) -> Response:
        return await _rerank(request, deps)

    shown = documented(RerankRequest, Answer, errors=(400, 404, 413, 415, 422, 429, 503))
    for path in ("/rerank", "/c/{collection}/rerank"):
        router.add_api_route(
            path, rerank, methods=["POST"], tags=["rank"], summary="Rerank documents", **shown
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request whose values are checked; one of `ids` and `documents` is empty."""

    body: RerankRequest
    query: TextOrMatrix
    ids: Sequence[str]
    documents: Sequence[TextOrMatrix]


async def _rerank(request: Request, deps: ApiDeps) -> Response:
    clock, record = Clock(deps, request), request.state.record
    form = format_of(request, Format.JSON, Format.MSGPACK)
    data = await read_body(request, deps.limits.max_body_bytes)
    with clock.stage("parse"):
        if len(data) < _OFF_LOOP_BYTES[form]:
            asked = _parse(data, form, deps.limits)
        else:
            asked = await asyncio.to_thread(_parse, data, form, deps.limits)
    name = request.path_params.get("collection") or asked.body.collection or deps.default_collection
    record.candidates = len(asked.ids) or len(asked.documents)
    collection = deps.store.collection(name) if asked.ids else None
    record.collection = None if collection is None else name

    async with HangUp(request.receive):
        query = await encoded_query(asked.query, deps, clock)
        candidates: Candidates
        if collection is not None:
            candidates = StoredCandidates(collection, asked.ids)
        else:
            candidates = InlineCandidates(_same_width(await encoded_documents(asked.documents, deps, clock)))
        ranking = await deps.engine.rank(
            query,
            candidates,
            top_n=asked.body.top_n or None,
            explain=asked.body.explain,
            deadline_s=clock.left_s,
        )
    with clock.stage("serialize"):
        results = await _results(request, asked, ranking, collection)
        return answer(
            request,
            deps,
            clock,
            ranking,
            results,
            kind="rerank",
            query_tokens=len(query),
            collection=None if collection is None else name,
            ids=asked.ids,
        )


async def _results(
    request: Request, asked: _Asked, ranking: Ranking, collection: Collection | None
) -> list[Result] | Raw:
    if collection is not None and not asked.body.return_documents:
        written = rows(ranking, asked.ids, msgpack=wants_msgpack(request))
        if written is not None:
            return written
    results = ranked(ranking, asked.ids, with_index=True)
    if asked.body.return_documents and collection is not None:
        await show_stored(results, collection, request)
    elif asked.body.return_documents:
        for result, position in zip(results, ranking.positions.tolist(), strict=True):
            document = asked.documents[position]
            result.document = Document(text=document) if isinstance(document, str) else UNSET
    return results


def _parse(data: bytes | bytearray, form: Format, limits: Limits) -> _Asked:
    body = _REQUEST.decode(data, form)
    if (body.ids is None) == (body.documents is None):
        raise InvalidInput("send exactly one of ids and documents", param="ids", code="ids_or_documents")
    ids, raw = body.ids or (), body.documents or ()
    field = "documents" if body.ids is None else "ids"
    checked_count(len(ids) + len(raw), limits.max_candidates, field, "max_candidates")
    query = parsed_query(body.query, limits)
    documents: list[TextOrMatrix] = []
    for i, item in enumerate(raw):
        field = f"documents[{i}]"
        content = _content(_INLINE.decode(item, form, field), field)
        documents.append(finite(parsed_document(content, field, limits), field))
    return _Asked(body, query, ids, documents)


def _content(document: str | NestedVectors | InlineDocument, field: str) -> Content:
    if not isinstance(document, InlineDocument):
        return document
    if document.text is not UNSET:
        return document.text
    if document.data is UNSET or document.shape is UNSET or document.dtype is UNSET:
        raise InvalidInput(f"{field} needs text, or data with shape and dtype", param=field)
    return PackedVectors(document.data, document.shape, document.dtype)


def _same_width(matrices: Sequence[Matrix]) -> Sequence[Matrix]:
    """Raises `InvalidInput` that names the first document of another width than the first."""
    width = matrices[0].shape[1]
    for i, matrix in enumerate(matrices):
        if matrix.shape[1] != width:
            raise InvalidInput(
                f"documents[{i}] has {matrix.shape[1]} columns, documents[0] has {width}",
                param=f"documents[{i}]",
                code="dimension_mismatch",
            )
    return matrices
