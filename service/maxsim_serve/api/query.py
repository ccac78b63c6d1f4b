"""The query and inline documents of a rerank or search: vectors are checked, text is encoded."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from ..encode import EncodeWorker
from ..errors import DeadlineExceeded, InvalidInput
from ..record import RequestRecord
from ..store import checked_vectors
from .deps import ApiDeps, Limits
from .matrices import as_matrix, check_rows
from .schemas import NestedVectors, PackedVectors

__all__ = [
    "Clock",
    "Content",
    "Matrix",
    "TextOrMatrix",
    "encoded_documents",
    "encoded_query",
    "finite",
    "parsed_document",
    "parsed_query",
    "required_encoder",
]

Content: TypeAlias = str | NestedVectors | PackedVectors
Matrix: TypeAlias = NDArray[np.generic]
TextOrMatrix: TypeAlias = str | Matrix


class Clock:
    """Times the stages of one request, and knows how much of its deadline is left."""

    def __init__(self, deps: ApiDeps, request: Request) -> None:
        self._histogram = deps.metrics.stage_of
        self._deadline_s = deps.limits.deadline_s
        self._started = time.perf_counter()
        record: RequestRecord = request.state.record
        self.timings_s = record.timings_s

    def stage(self, name: str) -> "_Stage":
        """Time the block, if it does not fail; a stage entered twice counts both times."""
        return _Stage(self, name)

    def count(self, name: str, seconds: float) -> None:
        self._histogram(name).observe(seconds)
        self.timings_s[name] = self.timings_s.get(name, 0.0) + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._deadline_s - (time.perf_counter() - self._started))


class _Stage:
    """What `contextmanager` would make of a generator, at a third of its price."""

    __slots__ = ("_clock", "_name", "_started")

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._clock.count(self._name, time.perf_counter() - self._started)


def parsed_query(content: Content, limits: Limits) -> TextOrMatrix:
    """Text that is not blank, or a finite matrix within the limit. Raises `InvalidInput`."""
    parsed = _parsed(content, "query", "empty_query", limits.max_query_tokens, "max_query_tokens")
    return finite(parsed, "query")


def parsed_document(content: Content, field: str, limits: Limits) -> TextOrMatrix:
    """Text that is not blank, or a matrix within the limit, finite or not. Raises `InvalidInput`."""
    return _parsed(content, field, "empty_document", limits.max_document_tokens, "max_document_tokens")


def _parsed(content: Content, field: str, blank_code: str, most_rows: int, setting: str) -> TextOrMatrix:
    if isinstance(content, str):
        if not content.strip():
            raise InvalidInput(f"{field} is blank; send text or token vectors", param=field, code=blank_code)
        return content
    matrix = as_matrix(content, field)
    check_rows(len(matrix), most_rows, field, setting)
    return matrix


def finite(content: TextOrMatrix, field: str) -> TextOrMatrix:
    """The content itself. Raises `InvalidInput` that names the field and the place of a NaN or infinity."""
    return (
        content if isinstance(content, str) else checked_vectors(content, dim=content.shape[1], field=field)
    )


def required_encoder(encoder: EncodeWorker | None, field: str) -> EncodeWorker:
    """Raises `InvalidInput` that names the setting where there is text and no encoder."""
    if encoder is None:
        raise InvalidInput(
            f"{field} is text and the setting encoder is none; set an encoder or send token vectors",
            param=field,
            code="no_encoder",
        )
    return encoder


async def encoded_query(query: TextOrMatrix, deps: ApiDeps, clock: Clock) -> Matrix:
    if not isinstance(query, str):
        return query
    encoder = required_encoder(deps.encoder, "query")
    async with _encoding(deps, clock):
        matrix: Matrix = (await encoder.encode_queries([query]))[0]
    return matrix


async def encoded_documents(documents: Sequence[TextOrMatrix], deps: ApiDeps, clock: Clock) -> list[Matrix]:
    """Every document as a matrix, in order; those that are text pass the encoder together."""
    texts = {i: document for i, document in enumerate(documents) if isinstance(document, str)}
    found = {i: document for i, document in enumerate(documents) if not isinstance(document, str)}
    if texts:
        encoder = required_encoder(deps.encoder, f"documents[{min(texts)}]")
        async with _encoding(deps, clock):
            found |= zip(texts, await encoder.encode_documents(list(texts.values())), strict=True)
    return [found[i] for i in range(len(documents))]


@asynccontextmanager
async def _encoding(deps: ApiDeps, clock: Clock) -> AsyncIterator[None]:
    try:
        with clock.stage("encode"):
            async with asyncio.timeout(clock.left_s):
                yield
    except TimeoutError:
        raise DeadlineExceeded(
            f"encoding took longer than deadline_s = {deps.limits.deadline_s}; send fewer texts or wait",
            retry_after_s=deps.limits.retry_after_s,
        ) from None
