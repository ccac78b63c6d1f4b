"""The stack as processes: PostgreSQL, the service and the retriever, each on a loopback port of its own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
RETRIEVER = ROOT / "docker" / "retriever"


class Process:
    """A server in a subprocess, its log in a file. `start` waits until its `/readyz` answers 200."""

    def __init__(self, command: list[str], environ: Mapping[str, str], url: str, log: Path) -> None:
        self.url = url
        self.log = log
        self._command = command
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAXSIM_", "RETRIEVER_"))}
        self._environ = kept | dict(environ)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environ, stdout=log, stderr=log)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"{self.url} was not ready in time:\n{self.log.read_text()}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
                raise


class Stack:
    """Starts services and retrievers; all of them end with the test module."""

    def __init__(self, directory: Path, database_url: str, exit: ExitStack) -> None:
        self.directory = directory
        self.database_url = database_url
        self._exit = exit

    def service(self, *flags: str) -> Process:
        port = free_port()
        data = tempfile.mkdtemp(dir=self.directory)
        command = [sys.executable, "-m", "maxsim_serve", "serve", "--port", str(port), "--data-dir", data]
        command += ["--device", "cpu", "--encoder", "minilm", *flags]
        return self._started(Process(command, {}, f"http://127.0.0.1:{port}", Path(data) / "service.log"))

    def retriever(self, reranker_url: str, collection: str, **settings: str) -> Process:
        port = free_port()
        environ = self.environ(reranker_url, collection) | {"RETRIEVER_PORT": str(port)}
        environ |= {f"RETRIEVER_{name.upper()}": value for name, value in settings.items()}
        log = self.directory / f"retriever-{port}.log"
        command = [sys.executable, "-m", "maxsim_retriever", "serve"]
        return self._started(Process(command, environ, f"http://127.0.0.1:{port}", log))

    def ingest(self, corpus: Path, reranker_url: str, collection: str) -> "subprocess.CompletedProcess[str]":
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RETRIEVER_")}
        return subprocess.run(
            [sys.executable, "-m", "maxsim_retriever", "ingest", str(corpus)],
            env=kept | self.environ(reranker_url, collection),
            capture_output=True,
            text=True,
            timeout=900,
        )

    def environ(self, reranker_url: str, collection: str) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(RETRIEVER), os.environ.get("PYTHONPATH")]))
        return {
            "PYTHONPATH": path,
            "RETRIEVER_DATABASE_URL": self.database_url,
            "RETRIEVER_RERANKER_URL": reranker_url,
            "RETRIEVER_COLLECTION": collection,
        }

    def _started(self, process: Process) -> Process:
        process.start()
        self._exit.callback(process.stop)
        return process


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    pytest.importorskip("psycopg", reason="docker/retriever/requirements.txt is not installed")
    with ExitStack() as exit:
        url = exit.enter_context(_Postgres())
        yield Stack(tmp_path_factory.mktemp("stack"), url, exit)


class _Postgres:
    """A PostgreSQL cluster of its own on a free loopback port; entering gives its URL. Never runs as root."""

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
