"""Logging: one line an event, as text for people or JSON for collectors.

What a request carries (its query, documents, vectors, payloads) is never logged, at no level.
"""

import json
import logging
import sys
import time
from typing import Literal

from .record import RequestRecord

__all__ = ["RequestLog", "configure"]

_log = logging.getLogger(__name__)

# What probes and Prometheus ask every few seconds.
_PROBES = frozenset({"/livez", "/readyz", "/health", "/metrics"})


class RequestLog:
    """One line for a request that took `slow_s` or longer; with `every`, one for each, probes aside."""

    def __init__(self, *, slow_s: float, every: bool) -> None:
        self._slow_s = slow_s
        self._every = every

    def __call__(self, record: RequestRecord) -> None:
        if record.duration_s >= self._slow_s:
            _log.warning("slow request", extra={"fields": _fields(record)})
        elif self._every and record.route not in _PROBES:
            _log.info("request", extra={"fields": _fields(record)})


def _fields(record: RequestRecord) -> dict[str, object]:
    known = {
        "request_id": record.request_id,
        "trace_id": record.trace_id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "duration_ms": _ms(record.duration_s),
        "collection": record.collection,
        "candidates": record.candidates,
        "kernel": record.kernel,
        "stages_ms": {stage: _ms(seconds) for stage, seconds in record.timings_s.items()} or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        shown = (f" {name}={_plain(value)}" for name, value in fields.items())
        return super().formatMessage(record) + "".join(shown)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Send every logger, uvicorn's too, to standard error in one form."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.error").setLevel(max(logging.INFO, root.level))
