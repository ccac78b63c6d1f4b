"""Over a real socket: chunked bodies, clients that hang up, uploads that stall, a busy loop."""

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPResponse

import httpx
import numpy as np
import pytest
import uvicorn

DIM = 16


@contextmanager
def served(service) -> Iterator[int]:
    """The service's app under uvicorn on a free port, in a thread with a loop of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(service.app, http="httptools", loop="uvloop", log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        service.until(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def request_bytes(method: str, path: str, body: bytes, *headers: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: test", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(head).encode() + body


def rerank_body(rng, ids) -> bytes:
    return json.dumps({"query": rng.standard_normal((3, DIM)).tolist(), "ids": ids}).encode()


@pytest.mark.parametrize("over", [0, 1])
def test_the_body_limit_for_chunked_bodies(service, rng, over):
    body = rerank_body(rng, ["a"])
    body += b" " * (100_000 - len(body) + over)

    def chunks():
        for start in range(0, len(body), 9_999):
            yield body[start : start + 9_999]

    with served(service) as port:
        response = httpx.post(f"http://127.0.0.1:{port}/rerank", content=chunks())
        assert "content-length" not in response.request.headers
        assert response.status_code == (413 if over else 200)
        if over:
            assert response.json()["error"]["param"] == "max_body_bytes"


def test_the_connection_lives_on_after_a_413(service, rng):
    with served(service) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert client.post("/rerank", content=b" " * 5_000_000).status_code == 413
        assert client.post("/rerank", content=rerank_body(rng, ["a"])).status_code == 200


class HeldEngine:
    """Holds the engine's thread, so that what is sent meanwhile stays in the queue."""

    def __init__(self, service, monkeypatch) -> None:
        from maxsim_serve.engine import CpuScorer

        self.entered, self.go = threading.Event(), threading.Event()
        launch = CpuScorer.launch

        def held(*args):
            self.entered.set()
            assert self.go.wait(20)
            return launch(*args)

        monkeypatch.setattr(CpuScorer, "launch", held)


@pytest.mark.parametrize("path", ["/rerank", "/search"])
def test_a_request_leaves_nothing_to_the_garbage_collector(service, rng, path):
    asked = {"ids": ["a", "b"]} if path == "/rerank" else {"top_k": 2}
    body = json.dumps({"query": rng.standard_normal((3, DIM)).tolist(), **asked}).encode()
    message = request_bytes("POST", path, body, f"Content-Length: {len(body)}")
    with served(service) as port, closing(socket.create_connection(("127.0.0.1", port))) as client:

        def ask(times):
            for _ in range(times):
                client.sendall(message)
                answer = HTTPResponse(client)
                answer.begin()
                assert answer.status == 200 and answer.read()
            time.sleep(0.05)  # what follows an answer

        gc.disable()
        try:
            ask(5)
            gc.collect()
            ask(50)
            assert gc.collect() < 50  # objects in cycles; one such request had 35
        finally:
            gc.enable()


def test_a_client_that_hangs_up_is_not_scored(service, rng, monkeypatch):
    held = HeldEngine(service, monkeypatch)
    body = rerank_body(rng, ["a", "b"])
    message = request_bytes("POST", "/rerank", body, f"Content-Length: {len(body)}")
    with served(service) as port:
        with closing(socket.create_connection(("127.0.0.1", port))) as first:
            first.sendall(message)
            assert held.entered.wait(10)
            for _ in range(3):
                with closing(socket.create_connection(("127.0.0.1", port))) as gone:
                    gone.sendall(message)
                    service.until(lambda: service.sample("maxsim_queue_depth") >= 1)
            service.until(
                lambda: (
                    service.sample("maxsim_http_requests_total", route="/rerank", method="POST", code="499")
                    == 3
                )
            )
            held.go.set()
            first.settimeout(10)
            assert first.recv(100).startswith(b"HTTP/1.1 200")
        service.until(lambda: service.sample("maxsim_rejected_total", reason="abandoned") == 3)
        service.until(lambda: service.sample("maxsim_rerank_candidates_count") == 1)
    assert service.sample("maxsim_rerank_candidates_count") == 1


def test_a_client_that_hangs_up_within_its_body_is_counted_and_nothing_else(service):
    with served(service) as port:
        with closing(socket.create_connection(("127.0.0.1", port))) as gone:
            gone.sendall(
                request_bytes("PUT", "/collections/default/documents", b'{"doc', "Content-Length: 500")
            )
            time.sleep(0.1)
        route = "/collections/{collection}/documents"
        service.until(
            lambda: service.sample("maxsim_http_requests_total", route=route, method="PUT", code="499") == 1
        )
    assert service.counts() == {"default": (0, 0)}


def test_texts_of_a_client_that_hangs_up_are_not_stored(service, monkeypatch):
    entered, go = threading.Event(), threading.Event()
    encoder = type(service.deps.encoder._encoder)
    encode = encoder.encode_documents

    def held(self, texts):
        entered.set()
        assert go.wait(20)
        return encode(self, texts)

    monkeypatch.setattr(encoder, "encode_documents", held)
    body = json.dumps({"documents": [{"id": "a", "text": "words"}]}).encode()
    with served(service) as port:
        with closing(socket.create_connection(("127.0.0.1", port))) as gone:
            length = f"Content-Length: {len(body)}"
            gone.sendall(request_bytes("PUT", "/collections/default/documents", body, length))
            assert entered.wait(10)
        route = "/collections/{collection}/documents"
        service.until(
            lambda: service.sample("maxsim_http_requests_total", route=route, method="PUT", code="499") == 1
        )
        go.set()
    assert service.counts() == {"default": (0, 0)}


def test_an_upload_that_stalls_gives_its_place_up(build, rng):
    service = build(deadline_s=0.2, max_concurrent_uploads=1)
    service("PUT", "/collections/default", json={"dim": DIM})
    with served(service) as port, closing(socket.create_connection(("127.0.0.1", port))) as stalled:
        stalled.sendall(request_bytes("PUT", "/collections/default/documents", b"{", "Content-Length: 500"))
        stalled.settimeout(10)
        answer = HTTPResponse(stalled)
        answer.begin()
        assert answer.status == 503
        assert b"deadline_s" in answer.read()
        good = {"documents": [{"id": "a", "vectors": rng.standard_normal((1, DIM)).tolist()}]}
        response = httpx.put(f"http://127.0.0.1:{port}/collections/default/documents", json=good)
        assert response.status_code == 200


def test_expect_continue_is_refused_before_the_body_is_sent(service):
    with served(service) as port, closing(socket.create_connection(("127.0.0.1", port))) as client:
        client.sendall(
            request_bytes("POST", "/rerank", b"", "Content-Length: 5000000", "Expect: 100-continue")
        )
        client.settimeout(10)
        assert client.recv(1000).startswith(b"HTTP/1.1 413")


def test_ids_pass_through_a_real_url(service, rng):
    id = "a/b%2F ?#é🦊\n"
    vectors = rng.standard_normal((2, DIM)).astype(np.float32).tolist()
    service("PUT", "/collections/default/documents", json={"documents": [{"id": id, "vectors": vectors}]})
    from urllib.parse import quote

    with served(service) as port:
        url = f"http://127.0.0.1:{port}/collections/default/documents/"
        for path in (quote(id, safe=""), quote(id)):
            document = httpx.get(url + path).json()
            assert document["id"] == id
            assert document["vectors"] == vectors


def test_probes_answer_while_a_large_upload_is_read(build, rng):
    service = build(max_body_bytes=1 << 28, max_document_tokens=100_000, max_documents_per_upsert=10_000)
    service("PUT", "/collections/default", json={"dim": DIM})
    row = "[" + ",".join(["0.1234567890123"] * DIM) + "]"
    rows = "[" + ",".join([row] * 100) + "]"
    documents = ",".join(f'{{"id":"{i}","vectors":{rows}}}' for i in range(1200))
    body = f'{{"documents":[{documents}]}}'.encode()
    assert len(body) > 25_000_000
    with served(service) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        uploads = threading.Thread(target=lambda: client.put("/collections/default/documents", content=body))
        uploads.start()
        answered = 0
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as probe:
            while uploads.is_alive():
                answered += probe.get("/livez").status_code == 200
        uploads.join()
    assert service.counts()["default"][0] == 1200
    assert answered >= 5  # a body decoded on the event loop lets one or two through
