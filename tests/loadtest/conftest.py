"""The scripts of loadtest/ as modules, and a `maxsim serve` that can be stopped and started again."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from maxsim_serve.cli.local import free_port

LOADTEST = Path(__file__).parents[2] / "loadtest"
sys.path.insert(0, str(LOADTEST))


class Server:
    """`maxsim serve` over one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    @contextmanager
    def running(self, *flags: str) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
        """(port, process) of a service that is ready; killed at the end if it still runs."""
        port = free_port()
        environ = {k: v for k, v in os.environ.items() if not k.startswith("MAXSIM_")}
        options = ["--port", str(port), "--data-dir", str(self._data_dir), "--device", "cpu", *flags]
        process = subprocess.Popen([sys.executable, "-m", "maxsim_serve", "serve", *options], env=environ)
        try:
            self._wait_until_ready(port, process)
            yield port, process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _wait_until_ready(self, port: int, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert process.poll() is None, "the service ended before it was ready"
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError("the service was not ready within a minute")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "data")
