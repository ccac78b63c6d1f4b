"""Errors on the wire: the one place that turns an exception into a status, headers and a body.

400  MalformedBody           not JSON, MessagePack or safetensors at all (a NaN literal included)
401  Unauthorized            413  TooLarge: the body, by `max_body_bytes`
404  NotFound, no route      415  UnsupportedMediaType
405  wrong method            422  InvalidInput: a field, a value or a count
409  Conflict                429  QueueFull
500  anything unexpected     503  Busy otherwise, InDoubt
                             507  OutOfSpace
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import (
    Busy,
    Conflict,
    InDoubt,
    InvalidInput,
    NotFound,
    OutOfSpace,
    QueueFull,
    ServiceError,
    TooLarge,
    Unauthorized,
)
from .schemas import Refusal

__all__ = [
    "AllRefused",
    "ClientGone",
    "ErrorBody",
    "MalformedBody",
    "UnsupportedMediaType",
    "respond",
    "respond_http",
    "respond_unexpected",
]


class MalformedBody(InvalidInput):
    """The body cannot be read in the format that its Content-Type names."""

    code = "malformed_body"


class UnsupportedMediaType(ServiceError):
    code = "unsupported_media_type"


class AllRefused(InvalidInput):
    """No document of an upsert was stored; `refusals` says why, one by one."""

    code = "documents_refused"

    def __init__(self, message: str, refusals: Sequence[Refusal]) -> None:
        super().__init__(message, param="documents")
        self.refusals = refusals


class ClientGone(Exception):
    """The client hung up. Nothing is answered; the request is counted under code 499."""


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    code: str
    param: str | None


class ErrorBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One body for all clients: `error` for those that follow OpenAI, `message` Cohere, `detail` FastAPI."""

    error: ErrorDetail
    message: str
    detail: str
    request_id: str
    errors: Sequence[Refusal] | msgspec.UnsetType = msgspec.UNSET


# The first class that an error is an instance of decides, so subclasses come first.
_STATUS: Mapping[type[ServiceError], int] = {
    MalformedBody: 400,
    Unauthorized: 401,
    NotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    UnsupportedMediaType: 415,
    InvalidInput: 422,
    QueueFull: 429,
    Busy: 503,
    InDoubt: 503,
    OutOfSpace: 507,
}

_TYPE = {
    401: "authentication_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "unavailable",
    507: "insufficient_storage",
}


def respond(request_id: str, error: ServiceError) -> Response:
    """The answer to a domain error."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    headers: dict[str, str] = {}
    if isinstance(error, Busy):
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    elif status == 401:
        headers["www-authenticate"] = "Bearer"
    refusals = error.refusals if isinstance(error, AllRefused) else msgspec.UNSET
    return _response(status, error.message, error.code, error.param, request_id, headers, refusals)


def respond_http(request: Request, error: HTTPException) -> Response:
    """The answer to what the router itself refuses: no such route, or not with this method."""
    codes = {404: "route_not_found", 405: "method_not_allowed"}
    message = {
        404: f"no route {request.url.path}; GET /docs shows those there are",
        405: f"{request.method} is not a method of {request.url.path}",
    }.get(error.status_code, str(error.detail))
    code = codes.get(error.status_code, "http_error")
    return _response(
        error.status_code, message, code, None, request.state.request_id, dict(error.headers or {})
    )


def respond_unexpected(request_id: str) -> Response:
    """The answer to a fault of the service: no detail leaves, the request id finds it in the log."""
    message = f"internal error; the log has it under request_id {request_id}"
    return _response(500, message, "internal_error", None, request_id, {})


def _response(
    status: int,
    message: str,
    code: str,
    param: str | None,
    request_id: str,
    headers: Mapping[str, str],
    refusals: Sequence[Refusal] | msgspec.UnsetType = msgspec.UNSET,
) -> Response:
    kind = _TYPE.get(status, "invalid_request_error")
    body: Any = ErrorBody(
        error=ErrorDetail(message, kind, code, param),
        message=message,
        detail=message,
        request_id=request_id,
        errors=refusals,
    )
    return Response(msgspec.json.encode(body), status, headers, "application/json")
