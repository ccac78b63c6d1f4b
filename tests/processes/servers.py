"""Servers in subprocesses: started and waited for, killed, started again, stopped."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx

from maxsim_serve.cli.local import free_port

__all__ = ["Server", "serve_command", "service", "surroundings"]

_START_S, _STOP_S = 90.0, 30.0
_SETTINGS = ("MAXSIM_", "RETRIEVER_")


class Server:
    """A command that serves on `port`. Its output is pytest's, which shows it where a test fails."""

    process: "subprocess.Popen[bytes]"

    def __init__(
        self,
        command: Sequence[str | Path],
        port: int,
        *,
        environ: Mapping[str, str] | None = None,
        ready_path: str = "/readyz",
    ) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._command = command
        self._environ = surroundings() | dict(environ or {})
        self._ready_path = ready_path

    def start(self) -> None:
        """Returns once the server says that it is ready."""
        self.process = subprocess.Popen(self._command, env=self._environ)
        deadline = time.monotonic() + _START_S
        with httpx.Client(base_url=self.url, timeout=2) as http:
            while time.monotonic() < deadline:
                assert self.process.poll() is None, f"{self._command} ended before it was ready"
                try:
                    if http.get(self._ready_path).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
        raise AssertionError(f"{self._command} was not ready within {_START_S:.0f} s")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, where it still runs; raises if it does not end by that."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    @contextmanager
    def running(self) -> Iterator[Self]:
        try:
            self.start()
            yield self
        finally:
            self.stop()


def surroundings() -> dict[str, str]:
    """The variables of this process, without the settings, which are meant for other servers."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}


def serve_command(port: int, data_dir: Path, *flags: str) -> list[str]:
    """`maxsim serve`."""
    options = ["--port", str(port), "--data-dir", str(data_dir), *flags]
    return [sys.executable, "-m", "maxsim_serve", "serve", *options]


def service(data_dir: Path, *flags: str) -> Server:
    """`maxsim serve` on a free port. Started again, it has the same directory and port."""
    port = free_port()
    return Server(serve_command(port, data_dir, *flags), port)
