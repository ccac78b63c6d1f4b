"""What is left behind of an answered request: counts, log lines, traces. And that none of it can fail it."""

import json
import logging

import pytest

from maxsim_serve.log import RequestLog, _JsonFormatter, _TextFormatter

DIM = 16
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def rerank(rng):
    """The body of a rerank of ids, its query made of numbers that would be noticed in a log."""
    return {"query": rng.standard_normal((3, DIM)).tolist(), "ids": ["a", "b", "gone"]}


def fill(service, rng):
    documents = [{"id": id, "vectors": rng.standard_normal((2, DIM)).tolist()} for id in ("a", "b")]
    assert service("PUT", "/collections/default/documents", json={"documents": documents}).status_code == 200


def observed(build, *observers):
    service = build(observers=observers)
    assert service("PUT", "/collections/default", json={"dim": DIM}).status_code == 201
    return service


def test_the_record_of_a_rerank(build, rng, rerank):
    records = []
    service = observed(build, records.append)
    fill(service, rng)
    answer = service(
        "POST", "/rerank", json=rerank, headers={"x-request-id": "mine", "traceparent": TRACEPARENT}
    )
    record = records[-1]
    assert (record.request_id, record.trace_id, record.status) == ("mine", TRACE, 200)
    assert (record.method, record.route) == ("POST", "/rerank")
    assert (record.collection, record.candidates) == ("default", 3)
    assert record.kernel == answer.json()["meta"]["kernel"]
    assert set(record.timings_s) == {
        "parse", "queue", "lookup", "kernel", "topk", "engine", "serialize",
    }  # fmt: skip
    assert 0 < sum(record.timings_s.values()) <= record.duration_s


def test_the_record_of_a_request_that_failed_tells_what_was_known(build, rerank):
    records = []
    service = observed(build, records.append)
    assert service("POST", "/c/no%0Asuch/rerank", json=rerank).status_code == 404
    assert (records[-1].collection, records[-1].candidates) == (None, 3)  # never a name that a client made up
    assert service("POST", "/c/default/rerank", json=rerank | {"query": [[1.0] * 8]}).status_code == 422
    assert (records[-1].route, records[-1].collection) == ("/c/{collection}/rerank", "default")
    assert set(records[-1].timings_s) == {"parse"}


@pytest.mark.parametrize(
    "refused",
    ["", "rubbish", f"ff{TRACEPARENT[2:]}", f"00-{'0' * 32}-00f067aa0ba902b7-01", TRACEPARENT.upper()],
)
def test_a_traceparent_that_is_none_is_passed_over(build, refused):
    records = []
    service = observed(build, records.append)
    assert service("GET", "/livez", headers={"traceparent": refused}).status_code == 200
    assert records[-1].trace_id is None


def test_an_observer_that_fails_fails_no_request_and_keeps_no_other_from_it(build, caplog):
    def broken(record):
        raise OSError("the exporter's connection is gone")

    records = []
    service = observed(build, broken, records.append)
    with caplog.at_level(logging.ERROR):
        assert service("GET", "/livez").status_code == 200
    assert records[-1].route == "/livez"
    assert "connection is gone" in caplog.text


def test_metrics_that_cannot_be_written_or_read_fail_no_request(service, rng, rerank, monkeypatch):
    from prometheus_client import values

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    fill(service, rng)
    monkeypatch.setattr(values.ValueClass, "inc", full)
    monkeypatch.setattr(values.ValueClass, "set", full)
    service.deps.metrics.queue_depth.set_function(full)
    for _ in range(3):  # the engine's thread, which counts too, lives on
        answer = service("POST", "/rerank", json=rerank)
        assert answer.status_code == 200
        assert [result["id"] for result in answer.json()["results"]]
    assert service("POST", "/rerank", content=b"{").status_code == 400
    scraped = service("GET", "/metrics")
    assert scraped.status_code == 200
    assert "maxsim_ready" in scraped.text
    assert "\nmaxsim_queue_depth" not in scraped.text


def lines(caplog, formatter):
    return [formatter.format(r) for r in caplog.records if r.name == "maxsim_serve.log"]


def test_the_line_of_a_slow_request_has_its_stages(build, rng, rerank, caplog):
    service = observed(build, RequestLog(slow_s=0.0, every=False))
    fill(service, rng)
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        service("POST", "/rerank", json=rerank, headers={"x-request-id": "mine"})
    (line,) = lines(caplog, _JsonFormatter())
    shown = json.loads(line)
    assert shown["message"] == "slow request"
    assert shown["level"] == "warning"
    wanted = {
        "request_id": "mine",
        "route": "/rerank",
        "status": 200,
        "collection": "default",
        "candidates": 3,
    }
    assert wanted.items() <= shown.items()
    assert set(shown["stages_ms"]) == {
        "parse", "queue", "lookup", "kernel", "topk", "engine", "serialize",
    }  # fmt: skip
    (text,) = lines(caplog, _TextFormatter("%(levelname)s %(message)s"))
    assert text.startswith("WARNING slow request request_id=mine method=POST route=/rerank status=200 ")
    assert '"kernel": ' in text


def test_a_quick_request_is_a_line_only_if_every_one_is(build, rng, rerank, caplog):
    for every in (False, True):
        service = observed(build, RequestLog(slow_s=60, every=every))
        fill(service, rng)
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            service("POST", "/rerank", json=rerank)
            service("GET", "/metrics")
        messages = [json.loads(line)["message"] for line in lines(caplog, _JsonFormatter())]
        assert messages == ["request"] * every


def test_no_query_document_or_vector_is_ever_logged(build, caplog, monkeypatch):
    """At the most talkative level, through answers, refusals and a fault."""
    service = observed(build, RequestLog(slow_s=0.0, every=True))
    secrets = ["xyzzyquery", "xyzzydocument", "xyzzypayload", "0.8675309"]
    row = [0.8675309] * DIM
    document = {"id": "a", "text": "xyzzydocument", "payload": {"note": "xyzzypayload"}}
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="maxsim_serve"):
        for method, path, body in (
            (
                "PUT",
                "/collections/default/documents",
                {"documents": [document, {"id": "b", "vectors": [row]}]},
            ),
            ("POST", "/rerank", {"query": "xyzzyquery", "ids": ["a", "b"], "return_documents": True}),
            ("POST", "/rerank", {"query": [row], "documents": ["xyzzydocument"]}),
            ("POST", "/search", {"query": "xyzzyquery", "top_k": 0}),
            ("POST", "/search", {"query": [row, row[:3]], "top_k": 1}),
            ("POST", "/search", {"query": "xyzzyquery", "top_k": "xyzzyquery"}),
        ):
            service(method, path, json=body)
        service("POST", "/rerank", content=b'{"query": "xyzzyquery", ')

        def fail(*args):
            raise RuntimeError("a fault")

        monkeypatch.setattr(type(service.deps.store), "collection", fail)
        assert service("POST", "/rerank", json={"query": "xyzzyquery", "ids": ["a"]}).status_code == 500
    logged = "\n".join(_JsonFormatter().format(record) for record in caplog.records)
    assert logged.count("slow request") == 8
    assert "a fault" in logged
    assert [secret for secret in secrets if secret in logged] == []


def test_labels_never_come_from_a_client(service, rng):
    """Random paths, ids, methods and collections: the series are those of the routes."""
    fill(service, rng)

    def count() -> int:
        return sum(len(family.samples) for family in service.deps.metrics.registry.collect())

    def ask(number: int) -> None:
        name = f"n{number}-{rng.integers(1 << 60)}"
        for method, path, body in (
            ("GET", f"/{name}", None),
            ("GET", f"/collections/{name}", None),
            ("GET", f"/collections/default/documents/{name}", None),
            (f"X{number}", "/livez", None),
            ("POST", f"/c/{name}/rerank", {"query": [[1.0] * DIM], "ids": [name]}),
            ("POST", "/rerank", {"query": [[1.0] * DIM], "ids": [name]}),
            ("POST", "/rerank", {"query": [[1.0] * DIM], "ids": [name], "collection": name}),
            ("PUT", f"/collections/{name}", {"dim": DIM}),
            ("DELETE", f"/collections/{name}", None),
        ):
            service(method, path, json=body)

    ask(0)
    before = count()
    for number in range(1, 40):
        ask(number)
    assert count() == before
