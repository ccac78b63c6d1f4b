"""What answers while the store loads: `/livez` as ever, everything else a 503 that says so."""

from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import Starting
from ..metrics import Metrics
from . import operations, wire
from .middleware import Telemetry

__all__ = ["build_starting_api"]


def build_starting_api(metrics: Metrics) -> ASGIApp:
    """The ASGI application for as long as the real one does not exist."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/livez":
            await operations.alive()(scope, receive, send)
        else:
            error = Starting("the service is starting: it is loading its store")
            await wire.respond(scope["state"]["request_id"], error)(scope, receive, send)

    return Telemetry(app, metrics)
