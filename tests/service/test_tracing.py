"""Traces: off, no SDK is imported; on, a span under the caller's; with a collector that is gone, no harm."""

import gzip
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from maxsim_serve.errors import InvalidInput
from maxsim_serve.record import RequestRecord
from maxsim_serve.tracing import Tracer

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def with_sdk() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP collector over HTTP: its address, and the bodies it was sent."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            bodies.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    server.shutdown()
    server.server_close()
    thread.join()


def record(**values: object) -> RequestRecord:
    made = RequestRecord("mine", "POST")
    made.route, made.status, made.duration_s = "/rerank", 200, 0.25
    made.collection, made.candidates, made.kernel = "default", 3, "cpu"
    made.timings_s.update(parse=0.001, kernel=0.2)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_a_request_is_a_span_below_the_callers_with_its_stages(collector):
    with_sdk()
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    endpoint, bodies = collector
    tracer = Tracer(endpoint, "1.2.3")
    asked = record(traceparent=f"00-{TRACE}-{PARENT}-01", trace_id=TRACE, tracestate="vendor=1")
    tracer(asked)
    tracer(failed := record(status=503))
    tracer(record(traceparent=f"00-{TRACE}-{PARENT}-00"))  # the caller does not record this one
    tracer.close()
    sent = ExportTraceServiceRequest.FromString(b"".join(bodies))
    (resource,) = sent.resource_spans
    assert ("service.name", "maxsim-serve") in [
        (a.key, a.value.string_value) for a in resource.resource.attributes
    ]
    first, second = resource.scope_spans[0].spans
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert first.name == "POST /rerank"
    assert first.trace_state == "vendor=1"
    assert first.end_time_unix_nano - first.start_time_unix_nano == 250_000_000
    attributes = {a.key: a.value for a in first.attributes}
    assert attributes["maxsim.request_id"].string_value == "mine"
    assert attributes["maxsim.collection"].string_value == "default"
    assert attributes["maxsim.candidates"].int_value == 3
    assert attributes["maxsim.stage.kernel_s"].double_value == 0.2
    assert attributes["http.response.status_code"].int_value == 200
    assert second.status.code == 2
    assert second.parent_span_id == b""
    assert failed.trace_id == second.trace_id.hex() != TRACE


def test_a_collector_that_is_gone_costs_no_request_any_time():
    with_sdk()
    tracer = Tracer("http://127.0.0.1:9/v1/traces", "1.2.3")
    started = time.perf_counter()
    for _ in range(5000):  # more than the SDK keeps
        tracer(record())
    assert time.perf_counter() - started < 5
    started = time.perf_counter()
    tracer.close()
    assert time.perf_counter() - started < 15


def test_without_the_extra_the_setting_is_refused_by_name(monkeypatch):
    for name in ("opentelemetry.sdk", "opentelemetry.sdk.trace", "opentelemetry.exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput, match=r"otlp_endpoint = http://c:4318: .*maxsim-serve\[otel\]"):
        Tracer("http://c:4318", "1.2.3")


def test_without_the_setting_neither_sdk_nor_exporter_is_imported(tmp_path):
    program = (
        "import sys; from maxsim_serve.app import Service; from maxsim_serve.settings import load;"
        "Service(load(environ={}), lambda: None);"
        "print([n for n in sys.modules if n.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr
