"""`maxsim serve`: run the service until SIGTERM or Ctrl-C, then drain and exit."""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from ..app import Service
from ..errors import DeviceLost, ServiceError
from ..log import configure
from ..settings import PREFIX, Settings, load

__all__ = ["add_parser", "run"]

_log = logging.getLogger(__name__)

# What a supervisor sees when the GPU failed for good: start again.
_DEVICE_LOST_STATUS = 75

# A scoring thread that wants the interpreter back waits for the event loop at most this long, and the
# other way round; Python's default of 5 ms would show in every answer.
_SWITCH_INTERVAL_S = 0.0005

# How long clients are told to leave before connections are closed, of the time there is for draining.
_NOTICE_S, _NOTICE_SHARE = 0.5, 0.25


class _Server(uvicorn.Server):
    """Says good-bye before it hangs up: for a short while each answer asks the client to close.

    uvicorn alone closes idle connections at once, and with them requests that have just arrived.
    """

    def __init__(self, config: uvicorn.Config, service: Service, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._service = service
        self._notice_s = min(_NOTICE_S, _NOTICE_SHARE * drain_timeout_s)
        # In whole seconds, as uvicorn counts; the engine's own limit is exact.
        config.timeout_graceful_shutdown = max(1, round(drain_timeout_s - self._notice_s))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.start_draining()
        self.server_state.default_headers.append((b"connection", b"close"))
        await asyncio.sleep(self._notice_s)
        await super().shutdown(sockets)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "serve", help="run the service", description="Run the service. Every flag is also a setting."
    )
    parser.add_argument("--config", type=Path, help=f"YAML file of settings ({PREFIX}CONFIG)")
    for name, field in Settings.model_fields.items():
        if name != "api_key":  # a flag would show it to everyone who can list processes
            parser.add_argument(
                f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=field.description
            )
    return parser


def run(args: argparse.Namespace) -> int:
    """Exit status 0 after a drained stop, 2 for settings that cannot work, 75 after the GPU was lost,
    1 for any other failed start."""
    config = args.config or (Path(os.environ[f"{PREFIX}CONFIG"]) if f"{PREFIX}CONFIG" in os.environ else None)
    try:
        settings = load(config, flags={name: getattr(args, name, None) for name in Settings.model_fields})
        configure(settings.log_level, settings.log_format)
        service = Service(settings, on_failure=lambda: setattr(server, "should_exit", True))
    except ServiceError as error:
        print(f"maxsim serve: {error.message}", file=sys.stderr)
        return 2
    server = _Server(
        uvicorn.Config(
            service,
            host=settings.host,
            port=settings.port,
            loop="uvloop",
            http="httptools",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
        ),
        service,
        settings.drain_timeout_s,
    )
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # uvicorn drains on these signals and then raises them again; what is left to do then is to return.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve())
    if isinstance(service.failure, DeviceLost):
        print(f"maxsim serve: {service.failure.message}", file=sys.stderr, flush=True)
        logging.shutdown()
        # Taking down what is left of the CUDA context would abort, with a status of its own.
        os._exit(_DEVICE_LOST_STATUS)
    if service.failure is not None:
        if isinstance(service.failure, ServiceError):
            print(f"maxsim serve: {service.failure.message}", file=sys.stderr)
        else:
            _log.error("start-up failed", exc_info=service.failure)
        return 1
    return 0 if server.started else 1
