"""Traces: each answered request as one OpenTelemetry span, its stages as attributes, sent as OTLP over HTTP.

Only a service that is told where to send traces makes a `Tracer`, and only then is OpenTelemetry's SDK (the
extra `otel`) imported. A span is made when its request has been answered, from the record of it, and a thread
of the SDK sends it: a collector that is slow or gone costs spans, never a request. The SDK's variables hold
(OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, …).
"""

from .errors import InvalidInput
from .record import RequestRecord

__all__ = ["Tracer"]

_EXPORT_TIMEOUT_S = 3


class Tracer:
    """An observer of requests. Raises `InvalidInput` where the extra is not installed."""

    def __init__(self, endpoint: str, version: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise InvalidInput(
                f"otlp_endpoint = {endpoint}: traces need pip install 'maxsim-serve[otel]' ({error})",
                param="otlp_endpoint",
            ) from None
        named = Resource.create({"service.name": "maxsim-serve", "service.version": version})
        self._provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()))
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("maxsim_serve", version)
        self._propagator = TraceContextTextMapPropagator()
        self._server = trace.SpanKind.SERVER
        self._failed = trace.Status(trace.StatusCode.ERROR)

    def __call__(self, record: RequestRecord) -> None:
        """Make the request's span, a child of the caller's where it named one, and note its trace id."""
        headers = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        span = self._tracer.start_span(
            f"{record.method} {record.route}",
            context=self._propagator.extract({name: value for name, value in headers.items() if value}),
            kind=self._server,
            start_time=record.started_unix_ns,
            attributes=_attributes(record),
        )
        record.trace_id = f"{span.get_span_context().trace_id:032x}"
        if record.status >= 500:
            span.set_status(self._failed)
        span.end(record.started_unix_ns + round(1e9 * record.duration_s))

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        self._provider.shutdown()


def _attributes(record: RequestRecord) -> dict[str, str | int | float]:
    known: dict[str, str | int | float | None] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "maxsim.request_id": record.request_id,
        "maxsim.collection": record.collection,
        "maxsim.candidates": record.candidates,
        "maxsim.kernel": record.kernel,
    }
    stages = {f"maxsim.stage.{stage}_s": seconds for stage, seconds in record.timings_s.items()}
    return {name: value for name, value in known.items() if value is not None} | stages
