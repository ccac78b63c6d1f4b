"""Collections: create, describe, list, drop, compact."""

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..errors import InvalidInput
from ..store import CollectionInfo, CollectionSpec, CompactReport
from .content import Codec, Format, format_of, read_body, reply
from .deps import ApiDeps
from .openapi import documented
from .schemas import CollectionRequest

__all__ = ["add_routes"]

_REQUEST: Codec[CollectionRequest] = Codec(CollectionRequest)


def add_routes(router: APIRouter, deps: ApiDeps) -> None:
    store = deps.store

    async def create(request: Request) -> Response:
        form = format_of(request, Format.JSON, Format.MSGPACK)
        data = await read_body(request, deps.limits.max_body_bytes)
        asked = _REQUEST.decode(data, form)
        spec = CollectionSpec(
            name=request.path_params["collection"],
            dim=_dim(asked, deps),
            dtype=asked.dtype,
            normalize=asked.normalize,
            tier=asked.tier,
        )
        created = not any(collection.spec.name == spec.name for collection in store.collections())
        collection = await asyncio.to_thread(store.create_collection, spec)
        return reply(request, collection.info(), 201 if created else 200)

    async def describe(request: Request) -> Response:
        collection = store.collection(request.path_params["collection"])
        return reply(request, collection.info())

    async def drop(request: Request) -> Response:
        name = request.path_params["collection"]
        await asyncio.to_thread(store.drop_collection, name)
        return reply(request, {"dropped": name})

    async def compact(request: Request) -> Response:
        collection = store.collection(request.path_params["collection"])
        return reply(request, await asyncio.to_thread(collection.compact))

    async def every(request: Request) -> Response:
        infos = [collection.info() for collection in store.collections()]
        return reply(request, {"collections": infos})

    one = "/collections/{collection}"
    creating = documented(
        CollectionRequest, CollectionInfo, status=201, errors=(400, 409, 413, 415, 422, 507)
    )
    described = documented(None, CollectionInfo, errors=(404,))
    compacted = documented(None, CompactReport, errors=(404, 507))
    for path, handler, method, summary, shown in (
        ("/collections", every, "GET", "List collections", documented(None, None)),
        (one, create, "PUT", "Create a collection; the same again changes nothing", creating),
        (one, describe, "GET", "Describe and count a collection", described),
        (one, drop, "DELETE", "Drop a collection and its documents", documented(None, None, errors=(404,))),
        (f"{one}/compact", compact, "POST", "Rewrite segments without their dead rows", compacted),
    ):
        router.add_api_route(path, handler, methods=[method], tags=["collections"], summary=summary, **shown)


def _dim(asked: CollectionRequest, deps: ApiDeps) -> int:
    if asked.dim is not None:
        return asked.dim
    if deps.encoder is None:
        raise InvalidInput(
            "dim is missing and the setting encoder is none; name the width of the token vectors", param="dim"
        )
    return deps.encoder.dim
