"""The retriever answers whatever becomes of the reranker, says whose order it is, and recovers by itself."""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from maxsim_serve.cli.docstrings import docstrings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COLLECTION = "docstrings"
QUESTIONS = ("run a function in another process", "parse command line arguments", "read an ini file")
CLIENTS = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"id": d.name, "text": d.text}) for d in docstrings(60)))
    return path


@pytest.fixture(scope="module")
def reranker(stack: Any, corpus: Path) -> Any:
    """A service that holds the corpus."""
    service = stack.service()
    assert stack.ingest(corpus, service, COLLECTION).returncode == 0
    return service


class Load:
    """Clients that search without a pause; every answer is kept, and every error."""

    def __init__(self, url: str) -> None:
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.errors: list[Exception] = []
        self._url = url
        self._done = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as http:
            for i in range(10_000):
                if self._done.is_set():
                    return
                try:
                    answer = http.post("/search", json={"query": QUESTIONS[i % 3], "top_k": 5})
                    self.answers.append((answer.status_code, answer.json()))
                except Exception as error:
                    self.errors.append(error)

    def stop(self) -> None:
        self._done.set()

    def until(self, reranked: bool, more: int = 20) -> None:
        """Wait for `more` further answers of this kind."""
        deadline, start = time.monotonic() + 60, len(self.answers)
        while sum(body.get("reranked") is reranked for _, body in self.answers[start:]) < more:
            assert time.monotonic() < deadline, (self.errors, self.answers[-1:])
            time.sleep(0.02)

    def reasons(self) -> Counter[str]:
        return Counter(body["reranker"].get("reason", "reranked") for _, body in self.answers)


@contextmanager
def load(url: str) -> Iterator[Load]:
    load = Load(url)
    threads = [threading.Thread(target=load.run) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop()
        for thread in threads:
            thread.join()


def test_it_outlives_the_reranker_and_comes_back_to_it(stack: Any, reranker: Any) -> None:
    retriever = stack.retriever(reranker, COLLECTION)
    with load(retriever.url) as clients:
        clients.until(reranked=True)
        reranker.kill()
        clients.until(reranked=False)
        reranker.start()
        clients.until(reranked=True)
    assert clients.errors == []
    assert {status for status, _ in clients.answers} == {200}
    # `busy` is the service as it starts, `timeout` a connection cut in its first milliseconds.
    assert set(clients.reasons()) <= {"reranked", "unreachable", "busy", "timeout"}
    for _, body in clients.answers:
        own = body["retriever"]["results"]
        assert own and len(body["results"]) == 5
        assert body["reranked"] or body["results"] == own
    counted = metric(retriever.url, 'retriever_searches_total{order="unreachable"}')
    assert counted == clients.reasons()["unreachable"] > 0


def test_a_reranker_that_hangs_costs_the_budget_and_no_more(stack: Any, reranker: Any) -> None:
    retriever = stack.retriever(reranker, COLLECTION, rerank_budget_s="1")
    reranker.process.send_signal(signal.SIGSTOP)
    try:
        answer = httpx.post(f"{retriever.url}/search", json={"query": QUESTIONS[0]}, timeout=30)
    finally:
        reranker.process.send_signal(signal.SIGCONT)
    body = answer.json()
    assert answer.status_code == 200 and body["reranked"] is False
    assert body["reranker"]["reason"] == "timeout"
    assert 1000 <= body["reranker"]["latency_ms"] < 2500
    assert httpx.post(f"{retriever.url}/search", json={"query": QUESTIONS[0]}, timeout=30).json()["reranked"]


def test_a_full_queue_is_waited_for_as_it_asks(stack: Any, corpus: Path) -> None:
    """One place in the queue, and an engine kept from it: the retriever is told 429, and comes back."""
    service = stack.service("--queue-depth", "1", "--retry-after-s", "1", "--threads", "1")
    retriever = stack.retriever(service, COLLECTION, tries="4", rerank_budget_s="8")
    assert stack.ingest(corpus, service, COLLECTION).returncode == 0
    ids = [json.loads(line)["id"] for line in corpus.read_text().splitlines()]
    with direct_load(service.url, ids), load(retriever.url) as clients:
        deadline = time.monotonic() + 60
        while metric(retriever.url, "retriever_rerank_retries_total") < 5:
            assert time.monotonic() < deadline, clients.reasons()
            time.sleep(0.1)
    assert clients.errors == []
    assert {status for status, _ in clients.answers} == {200}
    assert set(clients.reasons()) <= {"reranked", "busy"}
    assert metric(service.url, 'maxsim_rejected_total{reason="queue_full"}') > 0
    # Who was refused waited the second that Retry-After named, before each further try.
    waited = [body["reranker"] for _, body in clients.answers if body["reranker"]["tries"] > 1]
    assert waited
    assert all(report["latency_ms"] >= 1000 * (report["tries"] - 1) for report in waited)
    body = httpx.post(f"{retriever.url}/search", json={"query": QUESTIONS[0]}, timeout=30).json()
    assert body["reranked"]


@contextmanager
def direct_load(url: str, ids: list[str]) -> Iterator[None]:
    """Long reranks, straight to the service, so that its queue is full most of the time."""
    done = threading.Event()
    body = {"collection": COLLECTION, "query": "what " * 100, "ids": ids * 100, "top_n": 1}

    def run() -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            while not done.is_set():
                http.post("/rerank", json=body)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def metric(url: str, name: str) -> float:
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.rsplit(" ", 1)[1])
    return 0.0
