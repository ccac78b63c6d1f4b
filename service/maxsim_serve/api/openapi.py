"""The OpenAPI document: FastAPI's, with bodies and answers from the msgspec types of `schemas`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ..store import CollectionInfo, CompactReport
from . import schemas
from .wire import ErrorBody

__all__ = ["documented", "install"]

_MEANING = {
    400: "The body is not JSON, MessagePack or safetensors.",
    404: "No such collection or document.",
    409: "The collection exists in another shape.",
    413: "The body is over `max_body_bytes`.",
    415: "A Content-Type that is not accepted here.",
    422: "A field, a value or a count; the message names it.",
    429: "Too many requests wait already; see Retry-After.",
    503: "Not ready, or out of time; see Retry-After.",
    507: "The disk or a memory budget is full.",
}

_TEMPLATE = "#/components/schemas/{name}"


def documented(
    body: type[msgspec.Struct] | None,
    answer: type | None,
    *,
    status: int = 200,
    errors: Sequence[int] = (),
    query: Mapping[str, str] | None = None,
    binary: Sequence[str] = (),
    media: str = "application/json",
) -> dict[str, Any]:
    """Keywords for `add_api_route` that describe a handler which reads and answers by itself.

    `query` maps the boolean query parameters to their meaning; `binary` names media types that are
    accepted beside JSON and MessagePack; `media` is the answer's.
    """
    failed = {"application/json": {"schema": _reference(ErrorBody)}}
    done = {media: {"schema": {} if answer is None else _reference(answer)}}
    responses: dict[int | str, Any] = {status: {"description": "Done.", "content": done}}
    responses |= {code: {"description": _MEANING[code], "content": failed} for code in errors}
    extra: dict[str, Any] = {}
    if query:
        extra["parameters"] = [
            {
                "name": name,
                "in": "query",
                "description": meaning,
                "schema": {"type": "boolean", "default": True},
            }
            for name, meaning in query.items()
        ]
    if body is not None:
        content: dict[str, Any] = {
            form: {"schema": _reference(body)} for form in ("application/json", "application/msgpack")
        }
        content |= {form: {"schema": {"type": "string", "format": "binary"}} for form in binary}
        extra["requestBody"] = {"required": True, "content": content}
    return {"status_code": status, "responses": responses, "openapi_extra": extra}


def install(app: FastAPI, *, bearer: bool) -> None:
    """Make `app.openapi()` the whole document; computed once. `bearer`: whether requests need an API key."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            components = document.setdefault("components", {})
            components["schemas"] = _schemas()
            for path, operation in _operations(document):
                operation["parameters"] = [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                    for name in re.findall(r"{(\w+)}", path)
                ] + operation.get("parameters", [])
            if bearer:
                components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"bearer": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI documents


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            yield path, operation


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": _TEMPLATE.format(name=kind.__name__)}


def _schemas() -> dict[str, Any]:
    kinds = [kind for name in schemas.__all__ if isinstance(kind := getattr(schemas, name), type)]
    _, components = msgspec.json.schema_components(
        [*kinds, ErrorBody, CollectionInfo, CompactReport], ref_template=_TEMPLATE
    )
    return components
