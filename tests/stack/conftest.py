"""The stack as processes: PostgreSQL, the service and the retriever, each on a loopback port of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from postgres import Postgres
from prometheus import Prometheus, prometheus
from servers import Server, service, surroundings

from maxsim_serve.cli.local import free_port

RETRIEVER = Path(__file__).parents[2] / "docker" / "retriever"

_Server = TypeVar("_Server", bound=Server)


class Stack:
    """Starts services, retrievers and Prometheus; all of them end with the test module."""

    def __init__(self, directory: Path, database_url: str, exit: ExitStack) -> None:
        self._directory = directory
        self._database_url = database_url
        self._exit = exit

    def service(self, *flags: str) -> Server:
        data_dir = Path(tempfile.mkdtemp(dir=self._directory))
        return self._started(service(data_dir, "--device", "cpu", "--encoder", "minilm", *flags))

    def retriever(self, reranker: Server, collection: str, **settings: str) -> Server:
        port = free_port()
        environ = self._environ(reranker, collection) | {"RETRIEVER_PORT": str(port)}
        environ |= {f"RETRIEVER_{name.upper()}": value for name, value in settings.items()}
        return self._started(
            Server([sys.executable, "-m", "maxsim_retriever", "serve"], port, environ=environ)
        )

    def ingest(self, corpus: Path, reranker: Server, collection: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "maxsim_retriever", "ingest", str(corpus)],
            env=surroundings() | self._environ(reranker, collection),
            capture_output=True,
            text=True,
            timeout=900,
        )

    def prometheus(self, **ports: int) -> Prometheus:
        """`ports` by the job that scrapes them."""
        return self._started(prometheus(Path(tempfile.mkdtemp(dir=self._directory)), ports))

    def _environ(self, reranker: Server, collection: str) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(RETRIEVER), os.environ.get("PYTHONPATH")]))
        return {
            "PYTHONPATH": path,
            "RETRIEVER_DATABASE_URL": self._database_url,
            "RETRIEVER_RERANKER_URL": reranker.url,
            "RETRIEVER_COLLECTION": collection,
        }

    def _started(self, server: _Server) -> _Server:
        return self._exit.enter_context(server.running())


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    pytest.importorskip("psycopg", reason="docker/retriever/requirements.txt is not installed")
    with ExitStack() as exit:
        url = exit.enter_context(Postgres())
        yield Stack(tmp_path_factory.mktemp("stack"), url, exit)
