"""What is known of a request once it is answered: for the log and for traces. No text, no vector, no path."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Observer", "RequestRecord", "trace_id_of"]

# W3C Trace Context: version, trace id, parent id, flags; a later version may append to it.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


@dataclass(slots=True)
class RequestRecord:
    """Begun when a request comes, filled on its way, handed to the observers when it is answered.

    `route` is a template, never a path. `timings_s` maps a stage to seconds. `collection` is one that exists.
    `traceparent` and `tracestate` are the caller's headers; `trace_id` stands where either names a trace,
    or a tracer began one.
    """

    request_id: str
    method: str
    traceparent: str | None = None
    tracestate: str | None = None
    trace_id: str | None = None
    started_unix_ns: int = field(default_factory=time.time_ns)
    route: str = "unmatched"
    status: int = 0
    duration_s: float = 0.0
    collection: str | None = None
    candidates: int | None = None
    kernel: str | None = None
    timings_s: dict[str, float] = field(default_factory=dict)


Observer: TypeAlias = Callable[[RequestRecord], None]


def trace_id_of(traceparent: str) -> str | None:
    """The trace id, 32 hexadecimal digits; None where the header is not W3C Trace Context."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return match[1] if match else None
