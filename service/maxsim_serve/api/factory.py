"""Puts the API together."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import ServiceError
from . import collections, documents, openapi, operations, rerank, search, wire
from .deps import ApiDeps
from .middleware import ApiKey, Telemetry

__all__ = ["build_api"]


class _DirectRoute(APIRoute):
    """A route whose handler takes the request and answers by itself: no parsing, no injection, no model, and
    none of the stacks of contexts that those would need."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = endpoint

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await handler(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app


def build_api(deps: ApiDeps) -> FastAPI:
    """The ASGI application over parts that are open and running."""
    middleware = [Middleware(Telemetry, metrics=deps.metrics, observers=deps.observers)]
    if deps.api_key is not None:
        open_paths = {"/livez", "/readyz"} | ({"/metrics"} if deps.metrics_public else set())
        middleware.append(Middleware(ApiKey, key=deps.api_key, open_paths=frozenset(open_paths)))
    app = FastAPI(
        title="maxsim-serve",
        description="Exact late-interaction (MaxSim) reranking and search over stored token vectors.",
        version=deps.version,
        middleware=middleware,
        redirect_slashes=False,  # a document id may end in a slash
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.router.route_class = _DirectRoute
    for family in (rerank, search, documents, collections, operations):
        family.add_routes(app.router, deps)
    _add_docs(app)
    openapi.install(app, bearer=deps.api_key is not None)

    async def on_service_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)
        return wire.respond(request.state.request_id, error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return wire.respond_http(request, error)

    app.add_exception_handler(ServiceError, on_service_error)
    app.add_exception_handler(HTTPException, on_http_error)
    return app


def _add_docs(app: FastAPI) -> None:
    async def schema(request: Request) -> Response:
        return operations.plain_json(app.openapi())

    async def docs(request: Request) -> Response:
        return get_swagger_ui_html(openapi_url="openapi.json", title=app.title)

    for path, handler in (("/openapi.json", schema), ("/docs", docs)):
        app.router.add_api_route(path, handler, methods=["GET"], include_in_schema=False)
