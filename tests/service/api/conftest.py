"""The real API over a real store and engine; only the encoder is a stand-in, with vectors made from words."""

import asyncio
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from numpy.typing import NDArray

from maxsim_serve.api import ApiDeps, Limits, build_api
from maxsim_serve.encode import EncodeWorker
from maxsim_serve.engine import Engine
from maxsim_serve.metrics import Metrics
from maxsim_serve.record import Observer
from maxsim_serve.store import Store

DIM = 16

LIMITS = {
    "max_body_bytes": 100_000,
    "max_candidates": 50,
    "max_query_tokens": 32,
    "max_document_tokens": 64,
    "max_documents_per_upsert": 20,
    "max_top_k": 100,
    "deadline_s": 20.0,
    "retry_after_s": 2.0,
    "max_concurrent_uploads": 2,
}


class WordEncoder:
    """One unit vector a word, the same for the same word, in queries and documents alike."""

    name = "words"
    dim = DIM

    def encode_queries(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return [np.stack([_word_vector(word) for word in text.split()]) for text in texts]

    encode_documents = encode_queries


def _word_vector(word: str) -> NDArray[np.float32]:
    vector = np.random.default_rng(zlib.crc32(word.encode())).standard_normal(DIM)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@dataclass
class Service:
    """A running API and a client that calls it in process, one request at a time."""

    app: FastAPI
    deps: ApiDeps
    runner: asyncio.Runner
    http: httpx.AsyncClient

    def __call__(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        return self.runner.run(self.http.request(method, path, **kwargs))

    def counts(self) -> dict[str, tuple[int, int]]:
        """Documents and generation of each collection: what no refused request may change."""
        infos = [collection.info() for collection in self.deps.store.collections()]
        return {info.name: (info.documents, info.generation) for info in infos}

    def sample(self, name: str, **labels: str) -> float:
        """A metric's value; 0 where it was never set."""
        return self.deps.metrics.registry.get_sample_value(name, labels) or 0.0

    @staticmethod
    def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for what another thread is about to do."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.005)


@contextmanager
def running(
    directory: Path,
    *,
    encoder: bool = True,
    api_key: str | None = None,
    metrics_public: bool = True,
    invalid_documents: Any = "skip",
    is_ready: Callable[[], tuple[bool, str]] = lambda: (True, "ready"),
    observers: Sequence[Observer] = (),
    **limits: Any,
) -> Iterator[Service]:
    metrics = Metrics()
    with ExitStack() as stack:
        store = stack.enter_context(
            Store.open(
                directory,
                segment_bytes=1 << 20,
                compact_dead_share=0.5,
                budget_bytes=1 << 28,
                metrics=metrics,
            )
        )
        engine = Engine(queue_depth=64, max_batch_tokens=100_000, retry_after_s=2.0, metrics=metrics)
        engine.start()
        worker = EncodeWorker(WordEncoder(), metrics) if encoder else None
        if worker is not None:
            stack.callback(worker.close)
        deps = ApiDeps(
            store=store,
            engine=engine,
            encoder=worker,
            metrics=metrics,
            limits=Limits(**(LIMITS | limits)),
            api_key=api_key,
            metrics_public=metrics_public,
            default_collection="default",
            invalid_documents=invalid_documents,
            model_name="words" if encoder else "none",
            version="1.2.3",
            is_ready=is_ready,
            probe=partial(engine.probe, 5.0),
            describe=lambda: {"device": "cpu"},
            observers=observers,
        )
        app = build_api(deps)
        runner = stack.enter_context(asyncio.Runner())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        service = Service(app, deps, runner, httpx.AsyncClient(transport=transport, base_url="http://test"))
        stack.callback(lambda: runner.run(service.http.aclose()))
        stack.callback(lambda: runner.run(engine.drain(5.0)))
        yield service


Build = Callable[..., Service]


@contextmanager
def _builder(directory: Path) -> Iterator[Build]:
    with ExitStack() as stack:
        numbers = iter(range(100))
        yield lambda **options: stack.enter_context(running(directory / str(next(numbers)), **options))


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Starts services with other settings than the usual; each on a directory of its own."""
    with _builder(tmp_path) as build:
        yield build


@pytest.fixture(scope="module")
def build_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    """The same for services that all tests of a module share."""
    with _builder(tmp_path_factory.mktemp("shared")) as build:
        yield build


@pytest.fixture
def service(build: Build) -> Service:
    """A service with the usual settings and an empty collection `default` [16 wide, float32]."""
    service = build()
    assert service("PUT", "/collections/default", json={"dim": DIM, "dtype": "float32"}).status_code == 201
    return service


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()
