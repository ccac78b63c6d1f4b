from collections.abc import Iterator

import httpx
import pytest

from maxsim_serve.cli.client import Client, NotAnswering, RequestFailed, collection_path


def client(answers: Iterator[httpx.Response | Exception], pauses_s: list[float]) -> Client:
    def handle(request: httpx.Request) -> httpx.Response:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Client("http://service", transport=httpx.MockTransport(handle), sleep=pauses_s.append)


def test_pauses_follow_retry_after_and_else_grow() -> None:
    pauses_s: list[float] = []
    answers = [
        httpx.Response(429, headers={"retry-after": "3"}, json={}),
        httpx.Response(503, headers={"retry-after": "3600"}, json={}),
        httpx.Response(503, json={}),
        httpx.ConnectError("refused"),
        httpx.Response(200, json={"ok": True}),
    ]
    assert client(iter(answers), pauses_s).request("GET", "/") == {"ok": True}
    assert pauses_s == [3.0, 30.0, 2.0, 4.0]


def test_a_service_that_stays_busy_is_given_up() -> None:
    pauses_s: list[float] = []
    busy = (httpx.Response(503, json={"message": "starting"}) for _ in range(100))
    with pytest.raises(RequestFailed, match=r"starting \(HTTP 503\)") as raised:
        client(busy, pauses_s).request("GET", "/")
    assert raised.value.status == 503
    assert len(pauses_s) == 7


def test_a_service_that_is_not_there_is_given_up() -> None:
    pauses_s: list[float] = []
    with pytest.raises(NotAnswering, match="no service answers at http://service: refused"):
        client((httpx.ConnectError("refused") for _ in range(100)), pauses_s).request("GET", "/", tries=3)
    assert len(pauses_s) == 2


@pytest.mark.parametrize("body", ["<html>proxy error</html>", "[]", ""])
def test_an_answer_that_is_no_json_object_is_shown(body: str) -> None:
    with pytest.raises(RequestFailed, match="no maxsim service"):
        client(iter([httpx.Response(200, text=body)]), []).request("GET", "/")


def test_collection_names_are_quoted() -> None:
    assert collection_path("a/b ü", "/documents") == "/collections/a%2Fb%20%C3%BC/documents"
