"""What operators and probes ask: alive, ready, healthy, what runs, which models, metrics."""

import asyncio
import time
from collections.abc import Mapping

import msgspec
from fastapi import APIRouter
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from ..errors import DeviceLost, Draining
from ..metrics import Metrics
from .deps import ApiDeps
from .openapi import documented

__all__ = ["add_routes", "alive", "exposition", "plain_json"]


def add_routes(router: APIRouter, deps: ApiDeps) -> None:
    started_unix_s = int(time.time())

    async def livez(request: Request) -> Response:
        return alive()

    async def readyz(request: Request) -> Response:
        ready, reason = deps.is_ready()
        if not ready:
            raise Draining(f"not ready: {reason}", retry_after_s=deps.limits.retry_after_s)
        if (fault := await deps.probe()) is not None:
            raise DeviceLost(f"not ready: {fault}", retry_after_s=deps.limits.retry_after_s)
        return plain_json({"status": "ready"})

    async def health(request: Request) -> Response:
        ready, reason = deps.is_ready()
        counts = _counts(deps)
        body = {
            "status": "ready" if ready else "unavailable",
            "reason": reason,
            "version": deps.version,
            **counts,
        }
        return plain_json(body, 200 if ready else 503)

    async def info(request: Request) -> Response:
        counts = _counts(deps)
        encoder = None if deps.encoder is None else {"name": deps.encoder.name, "dim": deps.encoder.dim}
        body = {
            "version": deps.version,
            "model": deps.model_name,
            "encoder": encoder,
            **counts,
            **deps.describe(),
        }
        return plain_json(body)

    async def models(request: Request) -> Response:
        model = {
            "id": deps.model_name,
            "object": "model",
            "created": started_unix_s,
            "owned_by": "maxsim-serve",
        }
        return plain_json({"object": "list", "data": [model]})

    async def metrics(request: Request) -> Response:
        return await exposition(deps.metrics, request.headers.get("accept", ""))

    for path, handler, summary, shown in (
        ("/livez", livez, "Whether the process answers", documented(None, None)),
        ("/readyz", readyz, "Whether requests are welcome", documented(None, None, errors=(503,))),
        ("/health", health, "Readiness, with counts", documented(None, None)),
        ("/info", info, "Version, settings, device and kernels", documented(None, None)),
        ("/v1/models", models, "The encoder, as OpenAI clients list models", documented(None, None)),
        ("/metrics", metrics, "Prometheus metrics", documented(None, None, media="text/plain")),
    ):
        router.add_api_route(path, handler, methods=["GET"], tags=["operations"], summary=summary, **shown)
    for path, handler in (("/livez", livez), ("/readyz", readyz)):  # simple probes ask without a body
        router.add_api_route(path, handler, methods=["HEAD"], include_in_schema=False)


def alive() -> Response:
    """The answer of `/livez`: the process turns its event loop, no more."""
    return plain_json({"status": "alive"})


async def exposition(metrics: Metrics, accept: str) -> Response:
    """The answer of `/metrics`, in the form that the Accept header asks for."""
    encode, content_type = choose_encoder(accept)
    text = await asyncio.to_thread(encode, metrics.registry)
    return Response(text, headers={"content-type": content_type})


def plain_json(content: Mapping[str, object], status: int = 200) -> Response:
    """`content` as JSON; what JSON has no form for (a path, a version) is shown as text."""
    return Response(msgspec.json.encode(content, enc_hook=str), status, media_type="application/json")


def _counts(deps: ApiDeps) -> Mapping[str, int]:
    infos = [collection.info() for collection in deps.store.collections()]
    return {
        "collections": len(infos),
        "documents": sum(info.documents for info in infos),
        "tokens": sum(info.tokens for info in infos),
    }
