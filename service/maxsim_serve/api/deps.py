"""What the API is given: the parts it calls, and the limits it holds requests to."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..encode import EncodeWorker
from ..engine import Engine
from ..metrics import Metrics
from ..record import Observer
from ..store import Store

__all__ = ["ApiDeps", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Each field is the setting of the same name; an error that a limit causes names it."""

    max_body_bytes: int
    max_candidates: int
    max_query_tokens: int
    max_document_tokens: int
    max_documents_per_upsert: int
    max_top_k: int
    deadline_s: float
    retry_after_s: float
    max_concurrent_uploads: int


@dataclass(frozen=True, slots=True)
class ApiDeps:
    """`is_ready` returns (ready, reason); `probe` why the device does not score, None if it does;
    `describe` what `/info` shows of settings, plan and device.

    Each of the `observers` is given the record of each request that was answered.
    """

    store: Store
    engine: Engine
    encoder: EncodeWorker | None
    metrics: Metrics
    limits: Limits
    api_key: str | None
    metrics_public: bool
    default_collection: str
    invalid_documents: Literal["skip", "refuse"]
    model_name: str
    version: str
    is_ready: Callable[[], tuple[bool, str]]
    probe: Callable[[], Awaitable[str | None]]
    describe: Callable[[], Mapping[str, object]]
    observers: Sequence[Observer] = ()
