"""POST /search: the exact best documents of a collection, or of some of it."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..engine import Candidates, StoredCandidates, WholeCollection
from ..errors import InvalidInput
from .answers import answer, checked_count, ranked, show_stored
from .content import Codec, Format, format_of, read_body
from .deps import ApiDeps
from .hangup import HangUp
from .openapi import documented
from .query import Clock, encoded_query, parsed_query
from .schemas import Answer, SearchRequest

__all__ = ["add_routes"]

_REQUEST: Codec[SearchRequest] = Codec(SearchRequest)


def add_routes(router: APIRouter, deps: ApiDeps) -> None:
    async def search(request: Request) -> Response:
        return await _search(request, deps)

    shown = documented(SearchRequest, Answer, errors=(400, 404, 413, 415, 422, 429, 503))
    for path in ("/search", "/c/{collection}/search"):
        router.add_api_route(
            path, search, methods=["POST"], tags=["rank"], summary="Search a collection", **shown
        )


async def _search(request: Request, deps: ApiDeps) -> Response:
    clock, limits = Clock(deps, request), deps.limits
    form = format_of(request, Format.JSON, Format.MSGPACK)
    data = await read_body(request, limits.max_body_bytes)
    with clock.stage("parse"):
        body = _REQUEST.decode(data, form)
        if body.top_k > limits.max_top_k:
            raise InvalidInput(
                f"top_k is {body.top_k}, the setting max_top_k allows {limits.max_top_k}",
                param="top_k",
                code="over_limit",
            )
        if body.ids is not None:
            checked_count(len(body.ids), limits.max_candidates, "ids", "max_candidates")
        asked = parsed_query(body.query, limits)
    name = request.path_params.get("collection") or body.collection or deps.default_collection
    collection = deps.store.collection(name)
    request.state.record.collection = name
    # A subset is a set: a document that is named twice is found once.
    ids = list(dict.fromkeys(body.ids or ()))

    async with HangUp(request.receive):
        query = await encoded_query(asked, deps, clock)
        candidates: Candidates = StoredCandidates(collection, ids) if ids else WholeCollection(collection)
        ranking = await deps.engine.rank(
            query, candidates, top_n=body.top_k, explain=body.explain, deadline_s=clock.left_s
        )
    with clock.stage("serialize"):
        results = ranked(ranking, ids, with_index=False)
        if body.return_documents:
            await show_stored(results, collection, request)
        return answer(
            request,
            deps,
            clock,
            ranking,
            results,
            kind="search",
            query_tokens=len(query),
            collection=name,
            ids=ids,
        )
