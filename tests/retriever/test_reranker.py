"""The client of /rerank, and the headers that a search hands on, against answers made to order."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

pytest.importorskip("psycopg", reason="docker/retriever/requirements.txt is not installed")

from maxsim_retriever import app as app_module
from maxsim_retriever.app import build_app
from maxsim_retriever.database import Candidate, Database
from maxsim_retriever.ingest import Document, IngestFailed, read
from maxsim_retriever.reranker import NotReranked, Reranked, Reranker
from maxsim_retriever.settings import Settings

GOOD = {"results": [{"id": "b", "relevance_score": 2.0}, {"id": "a", "relevance_score": 1.0}], "missing": []}

Answer = httpx.Response | Exception


def rerank(*answers: Answer, **options: float) -> tuple[Reranked | NotReranked, int, float]:
    """What came of it, the requests that were sent, and the seconds it took."""
    queue, sent = list(answers), 0

    def handle(_: httpx.Request) -> httpx.Response:
        nonlocal sent
        sent += 1
        answer = queue.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call() -> Reranked | NotReranked:
        settings: dict[str, Any] = {"budget_s": 2.0, "tries": 3, "retry_after_cap_s": 1.0} | options
        async with httpx.AsyncClient(
            base_url="http://reranker", transport=httpx.MockTransport(handle)
        ) as http:
            try:
                return await Reranker(http, collection="c", **settings).rerank("q", ["a", "b"], 2, {})
            except NotReranked as error:
                return error

    started = time.monotonic()
    outcome = asyncio.run(call())
    return outcome, sent, time.monotonic() - started


@pytest.mark.parametrize("status", [429, 503])
def test_it_waits_as_long_as_it_is_told(status: int) -> None:
    outcome, sent, seconds = rerank(
        httpx.Response(status, headers={"retry-after": "0.3"}), httpx.Response(200, json=GOOD)
    )
    assert isinstance(outcome, Reranked) and outcome.results == [("b", 2.0), ("a", 1.0)]
    assert (outcome.tries, sent) == (2, 2)
    assert 0.3 <= seconds < 1


@pytest.mark.parametrize(
    ("header", "options"), [("5", {}), ("0.9", {"budget_s": 0.5})], ids=["cap", "budget"]
)
def test_a_wait_that_is_too_long_is_not_begun(header: str, options: dict[str, float]) -> None:
    outcome, sent, seconds = rerank(httpx.Response(429, headers={"retry-after": header}), **options)
    assert isinstance(outcome, NotReranked) and outcome.reason == "busy"
    assert sent == 1 and seconds < 0.4


def test_it_gives_up_after_its_tries() -> None:
    busy = [httpx.Response(503, headers={"retry-after": "0"}) for _ in range(3)]
    outcome, sent, _ = rerank(*busy)
    assert isinstance(outcome, NotReranked) and (outcome.reason, outcome.tries, sent) == ("busy", 3, 3)


def test_a_broken_connection_is_tried_again() -> None:
    outcome, sent, _ = rerank(httpx.ReadError("reset"), httpx.Response(200, json=GOOD))
    assert isinstance(outcome, Reranked) and sent == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.Response(404, json={"message": "no collection c"}), "refused"),
        (httpx.Response(500), "refused"),
        (httpx.Response(200, text="<html>"), "refused"),
        (httpx.Response(200, json={"results": [{}]}), "refused"),
        (httpx.ReadTimeout("slow"), "timeout"),
    ],
    ids=["404", "500", "no JSON", "no ids", "timeout"],
)
def test_what_another_try_cannot_help_is_not_tried_again(answer: Answer, reason: str) -> None:
    outcome, sent, _ = rerank(answer)
    assert isinstance(outcome, NotReranked) and (outcome.reason, sent) == (reason, 1)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[httpx.Response, httpx.Headers]]:
    """POST /search, with PostgreSQL's candidates given; also the headers that the reranker saw."""

    async def found(self: Database, query: str, limit: int) -> list[Candidate]:
        return [Candidate("a", "A", 0.3), Candidate("b", "B", 0.2), Candidate("gone", "", 0.1)]

    monkeypatch.setattr(Database, "search", found)
    seen: list[httpx.Headers] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(200, json=GOOD | {"missing": ["gone"]})

    real = httpx.AsyncClient

    def call(headers: dict[str, str], **body: Any) -> tuple[httpx.Response, httpx.Headers]:
        with monkeypatch.context() as patch:
            mock = httpx.MockTransport(handle)
            patch.setattr(app_module.httpx, "AsyncClient", lambda **kw: real(**kw, transport=mock))
            app = build_app(Settings())

        async def post() -> httpx.Response:
            async with real(transport=httpx.ASGITransport(app), base_url="http://test") as http:
                return await http.post("/search", json=body, headers=headers)

        return asyncio.run(post()), seen[-1] if seen else httpx.Headers()

    return call


def test_the_request_id_and_the_trace_are_handed_on(search: Any) -> None:
    trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "tracestate": "vendor=1"}
    answer, seen = search({"x-request-id": "mine", **trace}, query="q")
    assert answer.headers["x-request-id"] == seen["x-request-id"] == answer.json()["request_id"] == "mine"
    assert {name: seen[name] for name in trace} == trace


def test_a_trace_that_is_none_is_not_handed_on(search: Any) -> None:
    answer, seen = search({"x-request-id": "not one id", "traceparent": "00-0-0-00"}, query="q")
    assert "traceparent" not in seen
    assert seen["x-request-id"] == answer.json()["request_id"] != "not one id"


def test_both_orders_are_answered_and_the_unknown_come_last(search: Any) -> None:
    answer, _ = search({}, query="q", top_k=3)
    body = answer.json()
    assert body["reranked"] is True
    assert [hit["id"] for hit in body["retriever"]["results"]] == ["a", "b", "gone"]
    assert [(hit["id"], hit["retrieved_rank"]) for hit in body["results"]] == [
        ("b", 2),
        ("a", 1),
        ("gone", 3),
    ]
    assert body["reranker"]["missing"] == 1


@pytest.mark.parametrize("body", [{"query": "  "}, {"query": "a\0"}, {"query": "q", "top_k": 0}, {}])
def test_what_is_no_search_is_refused(search: Any, body: dict[str, Any]) -> None:
    answer, _ = search({}, **body)
    assert answer.status_code == 422


def test_a_corpus_is_read_and_a_bad_line_named() -> None:
    lines = ['{"_id": 7, "title": "t", "text": "x"}\n', "\n", '{"id": "b", "text": "y"}']
    assert list(read(lines)) == [Document("7", "t", "x"), Document("b", "", "y")]
    with pytest.raises(IngestFailed, match="line 2"):
        list(read(['{"id": "a", "text": "x"}', '{"id": "b"}']))
