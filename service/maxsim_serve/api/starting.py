"""What answers while the store loads: `/livez` and `/metrics` as ever, everything else a 503 that says so."""

from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import Starting
from ..metrics import Metrics
from . import operations, wire
from .middleware import Telemetry

__all__ = ["build_starting_api"]


def build_starting_api(metrics: Metrics, *, metrics_open: bool) -> ASGIApp:
    """The ASGI application for as long as the real one does not exist.

    `metrics_open`: whether `/metrics` answers without an API key; if not, it waits for the real one.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/livez":
            response = operations.alive()
        elif scope["path"] == "/metrics" and metrics_open:
            # Prometheus must be able to tell a service that loads (maxsim_ready 0) from one that is gone.
            response = await operations.exposition(metrics, "")
        else:
            error = Starting("the service is starting: it is loading its store")
            response = wire.respond(scope["state"]["request_id"], error)
        await response(scope, receive, send)

    return Telemetry(app, metrics)
