"""What every request passes: an id, its metrics, the last resort for faults, the API key. Plain ASGI."""

import asyncio
import hmac
import logging
import os
import re
import time
from collections.abc import Sequence
from functools import cache

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import Draining, Unauthorized
from ..metrics import Metrics
from ..record import Observer, RequestRecord, trace_id_of
from . import wire

__all__ = ["ApiKey", "Telemetry"]

_log = logging.getLogger(__name__)

_CLIENT_GONE = 499  # nginx's code for a client that hung up; it is never sent
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Telemetry:
    """Gives each request an id (the client's own, if printable), answers faults, counts and times.

    The `observers` see each request once it is answered; what goes wrong in one is logged and no more.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, observers: Sequence[Observer] = ()) -> None:
        self._app = app
        # Routes are templates, methods and codes are few: so are these.
        self._requests = cache(metrics.http_requests.labels)
        self._duration = cache(metrics.http_request_duration.labels)
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        given = _header(scope, b"x-request-id")
        request_id = given if given and _REQUEST_ID.fullmatch(given) else os.urandom(16).hex().encode()
        method = scope["method"] if scope["method"] in _METHODS else "other"
        record = RequestRecord(request_id.decode(), method)
        record.traceparent, record.tracestate = _text(scope, b"traceparent"), _text(scope, b"tracestate")
        if record.traceparent is not None:
            record.trace_id = trace_id_of(record.traceparent)
        scope.setdefault("state", {}).update(request_id=record.request_id, record=record)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except wire.ClientGone:
            status = _CLIENT_GONE
        except asyncio.CancelledError:
            # By the server, when the time for draining is over.
            if status:
                raise
            error = Draining("the service stopped before the request was done; send it to another one")
            await wire.respond(request_id.decode(), error)(scope, receive, send_with_id)
        except Exception:
            _log.exception("request %s failed: %s %r", request_id.decode(), scope["method"], scope["path"])
            if status:
                raise  # half an answer is out: only closing the connection can tell the client
            await wire.respond_unexpected(request_id.decode())(scope, receive, send_with_id)
        finally:
            # Templates, never paths: a label per path would grow without bound.
            record.route = getattr(scope.get("route"), "path_format", "unmatched")
            record.status = status or _CLIENT_GONE
            record.duration_s = time.perf_counter() - started
            self._account(record)

    def _account(self, record: RequestRecord) -> None:
        self._requests(record.route, record.method, str(record.status)).inc()
        self._duration(record.route).observe(record.duration_s)
        for observer in self._observers:
            try:
                observer(record)
            except Exception:
                _log.exception("request %s was answered, and then not logged or traced", record.request_id)


class ApiKey:
    """Lets pass what carries `Authorization: Bearer <key>` or goes to one of the `open_paths`."""

    def __init__(self, app: ASGIApp, key: str, open_paths: frozenset[str]) -> None:
        self._app = app
        self._key = key.encode()
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        scheme, _, token = (_header(scope, b"authorization") or b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._key):
            await self._app(scope, receive, send)
            return
        error = Unauthorized(
            "the API key is missing or wrong; send the header Authorization: Bearer <key>",
            param="authorization",
        )
        await wire.respond(scope["state"]["request_id"], error)(scope, receive, send)


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


def _text(scope: Scope, name: bytes) -> str | None:
    value = _header(scope, name)
    return None if value is None else value.decode("latin-1")
