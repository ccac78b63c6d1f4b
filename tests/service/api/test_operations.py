"""Probes, key, ids of requests, metrics, the OpenAPI document, and faults of the service itself."""

import asyncio
import base64
import logging
import re

import httpx
import numpy as np
import pytest
from msgspec.json import decode

from maxsim_serve.api import build_starting_api
from maxsim_serve.errors import DeadlineExceeded, OutOfMemory, OutOfSpace, QueueFull
from maxsim_serve.metrics import Metrics

DIM = 16
ROW = [1.0] + [0.0] * (DIM - 1)


def test_probes_of_a_ready_service(service):
    assert service("GET", "/livez").json() == {"status": "alive"}
    assert service("GET", "/readyz").json() == {"status": "ready"}
    for path in ("/livez", "/readyz"):
        assert service("HEAD", path).status_code == 200
    health = service("GET", "/health").json()
    assert health == {
        "status": "ready",
        "reason": "ready",
        "version": "1.2.3",
        "collections": 1,
        "documents": 0,
        "tokens": 0,
    }


def test_probes_of_a_service_that_is_not_ready(build):
    service = build(is_ready=lambda: (False, "draining"))
    assert service("GET", "/livez").status_code == 200
    ready = service("GET", "/readyz")
    assert ready.status_code == 503
    assert ready.headers["retry-after"] == "2"
    assert "draining" in ready.json()["message"]
    health = service("GET", "/health")
    assert health.status_code == 503
    assert health.json()["reason"] == "draining"


def test_info_and_models(service):
    info = service("GET", "/info").json()
    assert info["version"] == "1.2.3"
    assert info["encoder"] == {"name": "words", "dim": DIM}
    assert info["device"] == "cpu"
    models = service("GET", "/v1/models").json()
    assert models["object"] == "list"
    assert [(model["id"], model["object"]) for model in models["data"]] == [("words", "model")]


def test_collections_from_creation_to_drop(service, rng):
    created = service("PUT", "/collections/papers", json={"dim": 24, "normalize": True})
    assert created.status_code == 201
    shape = {"name": "papers", "dim": 24, "dtype": "float16", "normalize": True}
    assert shape.items() <= created.json().items()
    documents = [{"id": str(i), "vectors": rng.standard_normal((3, 24)).tolist()} for i in range(4)]
    service("PUT", "/collections/papers/documents", json={"documents": documents})
    service("POST", "/collections/papers/documents/delete", json={"ids": ["0", "1"]})
    described = service("GET", "/collections/papers").json()
    assert (described["documents"], described["tokens"]) == (2, 6)
    assert described["dead_bytes"] == 2 * 3 * 24 * 2
    assert service("POST", "/collections/papers/compact").json()["freed_bytes"] == described["dead_bytes"]
    assert service("GET", "/collections/papers").json()["dead_bytes"] == 0
    names = [collection["name"] for collection in service("GET", "/collections").json()["collections"]]
    assert names == ["default", "papers"]
    assert service("DELETE", "/collections/papers").json() == {"dropped": "papers"}
    assert service("GET", "/collections/papers").status_code == 404


def test_a_collection_takes_its_width_from_the_encoder(service):
    assert service("PUT", "/collections/words", json={}).json()["dim"] == DIM


@pytest.mark.parametrize("metrics_public", [True, False])
def test_the_api_key_guards_everything_but_the_probes(build, metrics_public):
    service = build(api_key="s3cret é", metrics_public=metrics_public)
    open_paths = {"/livez", "/readyz"} | ({"/metrics"} if metrics_public else set())
    paths = (
        "/livez",
        "/readyz",
        "/metrics",
        "/health",
        "/info",
        "/v1/models",
        "/docs",
        "/openapi.json",
        "/collections",
        "/no",
    )
    for path in paths:
        response = service("GET", path)
        assert (response.status_code == 401) is (path not in open_paths), path
        if path not in open_paths:
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "unauthorized"
            assert response.json()["request_id"] == response.headers["x-request-id"]
    assert service("POST", "/rerank", json={}).status_code == 401

    def ask(value):
        return service("GET", "/info", headers=[(b"authorization", value.encode())]).status_code

    assert ask("Bearer s3cret é") == 200
    assert ask("bearer  s3cret é") == 200
    for wrong in (
        "Bearer s3cret",
        "Bearer",
        "Basic s3cret é",
        "s3cret é",
        "Bearer s3cret éé",
        "Bearer \u2603",
    ):
        assert ask(wrong) == 401, wrong


def test_request_ids_are_echoed_or_made(service):
    assert service("GET", "/livez", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = {service("GET", "/livez").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for refused in ("has space", "", "x" * 129):
        assert service("GET", "/livez", headers={"x-request-id": refused}).headers["x-request-id"] != refused


def test_requests_are_counted_by_route_template(service):
    service("GET", "/collections/default/documents/a/b")
    service("GET", "/no/such/route")
    service("BREW", "/livez")
    service("GET", "/rerank")
    text = service("GET", "/metrics").text
    expected = {
        'code="404",method="GET",route="/collections/{collection}/documents/{id}"',
        'code="404",method="GET",route="unmatched"',
        'code="405",method="other",route="/livez"',
        'code="405",method="GET",route="/rerank"',
    }
    assert {f"maxsim_http_requests_total{{{labels}}} 1.0" for labels in expected} <= set(text.splitlines())
    assert 'maxsim_http_request_duration_seconds_count{route="unmatched"} 1.0' in text


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (QueueFull("full", retry_after_s=0.2), 429, "1"),
        (DeadlineExceeded("late", retry_after_s=3), 503, "3"),
        (OutOfMemory("no room"), 503, "1"),
        (OutOfSpace("disk full"), 507, None),
    ],
)
def test_refusals_of_the_engine(service, monkeypatch, error, status, retry):
    async def rank(*args, **kwargs):
        raise error

    monkeypatch.setattr(type(service.deps.engine), "rank", rank)
    response = service("POST", "/rerank", json={"query": [ROW], "ids": ["a"]})
    assert response.status_code == status
    assert response.json()["error"]["code"] == error.code
    assert response.headers.get("retry-after") == retry


def test_a_fault_is_a_500_that_tells_nothing_but_its_id(service, monkeypatch, caplog):
    def fail(*args):
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(type(service.deps.store), "collection", fail)
    with caplog.at_level(logging.ERROR):
        response = service("POST", "/rerank", json={"query": [ROW], "ids": ["a"]})
    assert response.status_code == 500
    body = response.json()
    assert body["error"]["code"] == "internal_error"
    assert body["request_id"] == response.headers["x-request-id"]
    assert "hunter2" not in response.text
    assert body["request_id"] in caplog.text
    assert "hunter2" in caplog.text
    assert service.sample("maxsim_http_requests_total", route="/rerank", method="POST", code="500") == 1


def test_an_encoder_that_takes_too_long_is_a_503(build, monkeypatch):
    import time

    service = build(deadline_s=0.05)
    encoder = service.deps.encoder._encoder
    monkeypatch.setattr(type(encoder), "encode_queries", lambda self, texts: time.sleep(0.5))
    response = service("POST", "/rerank", json={"query": "a", "documents": ["b"]})
    assert response.status_code == 503
    assert "deadline_s = 0.05" in response.json()["message"]


def test_the_openapi_document_describes_what_is_served(service):
    document = service("GET", "/openapi.json").json()
    operations = {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert {
        ("POST", "/rerank"), ("POST", "/c/{collection}/rerank"),
        ("POST", "/search"), ("POST", "/c/{collection}/search"), ("GET", "/collections"),
        ("PUT", "/collections/{collection}"), ("GET", "/collections/{collection}"),
        ("DELETE", "/collections/{collection}"), ("POST", "/collections/{collection}/compact"),
        ("PUT", "/collections/{collection}/documents"), ("GET", "/collections/{collection}/documents/{id}"),
        ("POST", "/collections/{collection}/documents/delete"), ("GET", "/livez"), ("GET", "/readyz"),
        ("GET", "/health"), ("GET", "/info"), ("GET", "/v1/models"), ("GET", "/metrics"),
    } <= set(operations)  # fmt: skip
    rerank = document["components"]["schemas"]["RerankRequest"]
    assert rerank["required"] == ["query"]
    assert {"query", "ids", "documents", "top_n", "return_documents", "explain"} <= set(rerank["properties"])
    for (_, path), operation in operations.items():
        named = [p["name"] for p in operation.get("parameters", []) if p["in"] == "path"]
        assert named == re.findall(r"{(\w+)}", path)
        assert operation["summary"]
    text = service("GET", "/openapi.json").text
    for name in set(re.findall(r'"#/components/schemas/(\w+)"', text)):
        assert name in document["components"]["schemas"], name
    assert "openapi.json" in service("GET", "/docs").text


def test_every_answer_has_the_keys_its_schema_names(service):
    document = decode(service("GET", "/openapi.json").content)
    service(
        "PUT",
        "/collections/default/documents",
        json={"documents": [{"id": "a", "text": "a b", "payload": 1}]},
    )
    vectors = {
        "data": base64.b64encode(np.ones((1, DIM), "<f4")).decode(),
        "shape": [1, DIM],
        "dtype": "float32",
    }
    body = {"query": vectors, "ids": ["a"], "explain": True, "return_documents": True}
    answer = service("POST", "/rerank", json=body).json()
    schemas = document["components"]["schemas"]
    assert set(answer) == set(schemas["Answer"]["properties"])
    assert set(answer["results"][0]) == set(schemas["Result"]["properties"])
    stored = service("GET", "/collections/default/documents/a").json()
    assert set(stored) == set(schemas["DocumentAnswer"]["properties"])


def test_while_the_store_loads_livez_answers_and_the_rest_says_what_is_going_on():
    async def ask(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(build_starting_api(Metrics(), metrics_open=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.get(path, headers={"x-request-id": "r1"})

    assert asyncio.run(ask("/livez")).json() == {"status": "alive"}
    for path in ("/readyz", "/rerank", "/nowhere"):
        answer = asyncio.run(ask(path))
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["x-request-id"] == "r1"
        assert answer.json()["error"]["code"] == "starting"
        assert answer.json()["request_id"] == "r1"


@pytest.mark.parametrize("metrics_open", [True, False])
def test_while_the_store_loads_metrics_say_so_to_whom_may_see_them(metrics_open):
    async def scrape() -> httpx.Response:
        transport = httpx.ASGITransport(build_starting_api(Metrics(), metrics_open=metrics_open))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.get("/metrics")

    answer = asyncio.run(scrape())
    assert answer.status_code == (200 if metrics_open else 503)
    assert ("maxsim_ready 0.0" in answer.text) is metrics_open
