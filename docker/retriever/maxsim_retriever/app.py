"""The HTTP face: `POST /search`, health and metrics. Everything is put together here."""

import logging
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import psycopg
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from psycopg_pool import PoolTimeout
from pydantic import BaseModel, Field, field_validator

from .database import Database
from .metrics import Metrics
from .reranker import Reranker
from .search import Answer, Searcher
from .settings import Settings

__all__ = ["build_app"]

_log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def build_app(settings: Settings) -> FastAPI:
    metrics = Metrics()
    database = Database(settings.database_url, connections=settings.database_connections)
    key = settings.reranker_api_key
    http = httpx.AsyncClient(
        base_url=settings.reranker_url,
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(settings.rerank_budget_s, connect=settings.connect_timeout_s),
        limits=httpx.Limits(
            max_connections=settings.reranker_connections,
            max_keepalive_connections=settings.reranker_connections,
        ),
        trust_env=False,  # the reranker is a neighbour: a proxy for the world is not on the way to it
    )
    reranker = Reranker(
        http,
        collection=settings.collection,
        budget_s=settings.rerank_budget_s,
        tries=settings.tries,
        retry_after_cap_s=settings.retry_after_cap_s,
    )
    searcher = Searcher(database, reranker, metrics, candidates=settings.candidates)

    class Query(BaseModel):
        query: str = Field(max_length=settings.max_query_characters)
        top_k: int = Field(10, ge=1, le=settings.max_top_k)

        @field_validator("query")
        @classmethod
        def _has_text(cls, value: str) -> str:
            if not value.strip() or "\0" in value:  # PostgreSQL's texts hold no NUL
                raise ValueError("query: at least one character that is no space, and no NUL")
            return value

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await database.open()
        try:
            yield
        finally:
            await http.aclose()
            await database.close()

    app = FastAPI(title="maxsim-serve's demo retriever", lifespan=lifespan)

    @app.post("/search", response_model_exclude_none=True)
    async def search(query: Query, request: Request, response: Response) -> Answer:
        """Both orders: PostgreSQL's, and the reranker's if it answered in time."""
        request_id = _request_id(request)
        response.headers["x-request-id"] = request_id
        passed_on = {"x-request-id": request_id} | _trace(request)
        return await searcher.search(query.query, query.top_k, request_id, passed_on)

    @app.exception_handler(psycopg.Error)
    async def database_failed(request: Request, error: Exception) -> JSONResponse:
        metrics.failures.inc()
        request_id = _request_id(request)
        _log.error("request %s: PostgreSQL: %s", request_id, error)
        away = isinstance(error, psycopg.OperationalError | PoolTimeout | psycopg.errors.UndefinedTable)
        message = "PostgreSQL cannot be searched now" if away else "PostgreSQL refused the search"
        return JSONResponse(
            {"message": message, "request_id": request_id},
            status_code=503 if away else 500,
            headers={"x-request-id": request_id} | ({"retry-after": "1"} if away else {}),
        )

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Ready while PostgreSQL is: without the reranker searches are answered in the retriever's order."""
        try:
            await database.make_ready()
        except psycopg.Error as error:
            return JSONResponse({"status": "not ready", "message": f"PostgreSQL: {error}"}, status_code=503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _trace(request: Request) -> dict[str, str]:
    """W3C trace context, handed on unchanged: the retriever opens no span of its own."""
    traceparent = request.headers.get("traceparent", "")
    if not _TRACEPARENT.fullmatch(traceparent):
        return {}
    state = request.headers.get("tracestate")
    return {"traceparent": traceparent} | ({"tracestate": state} if state else {})
