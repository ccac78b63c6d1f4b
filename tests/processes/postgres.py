"""A PostgreSQL cluster of one's own."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from maxsim_serve.cli.local import free_port

__all__ = ["Postgres"]


class Postgres:
    """A cluster in a temporary directory, on a free loopback port; entering gives its URL. Never root."""

    def __enter__(self) -> str:
        binaries = _binaries()
        # Not pytest's directory: nobody but root may enter that when root runs the tests.
        self._directory = Path(tempfile.mkdtemp(prefix="maxsim-postgres-"))
        user = "postgres" if os.geteuid() == 0 else None
        if user:
            shutil.chown(self._directory, user)
        data, port = self._directory / "data", free_port()
        run = {"user": user, "cwd": "/", "check": True, "capture_output": True, "text": True}
        subprocess.run([binaries / "initdb", "-D", data, "-U", "test", "-A", "trust", "-N"], **run)
        with (self._directory / "log").open("wb") as log:
            options = {"port": port, "listen_addresses": "127.0.0.1", "fsync": "off"}
            options["unix_socket_directories"] = str(self._directory)
            command = [binaries / "postgres", "-D", data]
            command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
            self._process = subprocess.Popen(command, user=user, cwd="/", stdout=log, stderr=log)
        url = f"postgresql://test@127.0.0.1:{port}/postgres"
        try:
            self._wait_until_ready(binaries, port)
        except BaseException:
            self.__exit__()
            raise
        return url

    def _wait_until_ready(self, binaries: Path, port: int) -> None:
        deadline = time.monotonic() + 30
        ready = [binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready, capture_output=True).returncode != 0:
            assert time.monotonic() < deadline, (self._directory / "log").read_text()
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)  # fast shutdown: does not wait for clients
        self._process.wait(30)
        shutil.rmtree(self._directory)


def _binaries() -> Path:
    """Where initdb is; Debian keeps it off the PATH."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not versions:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    return versions[-1].parent
