"""A service of one's own: a real `maxsim serve` in a subprocess, for as long as a command needs it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from .client import Client, NotAnswering, RequestFailed

__all__ = ["LocalService", "ServiceDied", "free_port"]

_STOP_TIMEOUT_S = 30.0
_LOG_LINES = 20


class ServiceDied(Exception):
    """The subprocess did not start or stop as it should; the message ends with the last lines of its log."""


class LocalService:
    """A context manager: a service on this machine's loopback, in a directory that is deleted afterwards.

    While it runs, SIGTERM acts on this process like Ctrl-C, so that the service never outlives it: use
    it from the main thread.

    `settings` are those that differ from the defaults; it scores on the CPU unless they say otherwise.
    `on_wait(elapsed_s)` is called some times a second until the service is ready.
    """

    def __init__(
        self,
        *,
        encoder: str,
        port: int = 0,
        settings: Mapping[str, object] | None = None,
        start_timeout_s: float = 120.0,
        on_wait: Callable[[float], None],
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._encoder = encoder
        self._settings = {"device": "cpu", **(settings or {})}
        self._start_timeout_s = start_timeout_s
        self._on_wait = on_wait

    def __enter__(self) -> Self:
        self._on_sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler)
        self._directory = Path(tempfile.mkdtemp(prefix="maxsim-"))
        # Settings of the surrounding shell are meant for another service.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MAXSIM_")}
        options = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "data-dir": str(self._directory / "data"),
            "encoder": self._encoder,
        }
        environ |= {f"MAXSIM_{name.upper()}": str(value) for name, value in self._settings.items()}
        command = [sys.executable, "-m", "maxsim_serve", "serve"]
        command += [part for name, value in options.items() for part in (f"--{name}", value)]
        with self._log.open("wb") as log:
            # Its own session: Ctrl-C in the terminal is for the command, which stops the service in order.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environ, start_new_session=True
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            status = self._stop()
            if status != 0 and error is None:
                raise ServiceDied(f"the service ended with exit status {status}:\n{self._log_tail()}")
        finally:
            self._clean_up()

    @property
    def pid(self) -> int:
        """The process id of the service."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def _log(self) -> Path:
        return self._directory / "service.log"

    def _wait_until_ready(self) -> None:
        started = time.monotonic()
        with Client(self.url) as client:
            while (elapsed_s := time.monotonic() - started) < self._start_timeout_s:
                self._on_wait(elapsed_s)
                status = self._process.poll()
                if status is not None:
                    raise ServiceDied(f"the service ended with exit status {status}:\n{self._log_tail()}")
                try:
                    client.request("GET", "/readyz", tries=1)
                except (NotAnswering, RequestFailed):
                    time.sleep(0.1)
                else:
                    return
        raise ServiceDied(f"the service was not ready after {elapsed_s:.0f} s:\n{self._log_tail()}")

    def _stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ServiceDied(
                f"the service did not stop in {_STOP_TIMEOUT_S:.0f} s:\n{self._log_tail()}"
            ) from None

    def _clean_up(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _log_tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  | {line}" for line in lines[-_LOG_LINES:])


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
