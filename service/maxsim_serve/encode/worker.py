"""The encoder's own thread: queries overtake documents, and what nobody waits for is not encoded."""

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import Draining
from ..metrics import Metrics
from .encoder import Encoder

__all__ = ["EncodeWorker"]

# A waiting query waits for the batch that runs, so a batch is short: 16 documents, or fewer long ones.
_BATCH_DOCUMENTS = 16
_BATCH_CHARACTERS = 8_000  # padding included; about 2,000 tokens

_STOP, _QUERY, _DOCUMENT = range(3)  # lowest first

_Encoded = list[NDArray[np.float32]]


@dataclass(order=True)
class _Batch:
    """Ordered by priority, then by arrival. The future is cancelled by whoever no longer waits for it."""

    priority: int
    number: int
    encode: Callable[[Sequence[str]], _Encoded] | None = field(compare=False, default=None)
    texts: Sequence[str] = field(compare=False, default=())
    future: "Future[_Encoded]" = field(compare=False, default_factory=Future)


class EncodeWorker:
    """Owns an encoder and the one thread that runs it. Close it once, when no more requests come."""

    def __init__(self, encoder: Encoder, metrics: Metrics) -> None:
        self._encoder = encoder
        self._metrics = metrics
        self._batches: queue.PriorityQueue[_Batch] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closed = False
        # Torch's thread count belongs to a thread, and a new one inherits whatever was set last anywhere.
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="encode", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._encoder.name

    @property
    def dim(self) -> int:
        return self._encoder.dim

    async def encode_queries(self, texts: Sequence[str]) -> _Encoded:
        """One float32 array [tokens, dim] per text. Raises `Draining` once the worker is closed."""
        encoded = await self._encode(_QUERY, self._encoder.encode_queries, [texts] if texts else [])
        self._count("query", encoded)
        return encoded

    async def encode_documents(self, texts: Sequence[str]) -> _Encoded:
        """One float32 array [tokens, dim] per text, in order. Raises `Draining` once the worker is closed.

        Cancelling the call drops the batches that have not started.
        """
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))  # alike lengths waste no padding
        by_length = await self._encode(
            _DOCUMENT, self._encoder.encode_documents, _split([texts[i] for i in order])
        )
        self._count("document", by_length)
        encoded = dict(zip(order, by_length, strict=True))
        return [encoded[i] for i in range(len(texts))]

    def close(self) -> None:
        """Stop after the batch that runs, and fail the calls that still wait with `Draining`."""
        self._closed = True
        self._batches.put(_Batch(_STOP, next(self._numbers)))
        self._thread.join()
        while not self._batches.empty():
            batch = self._batches.get_nowait()
            if batch.future.set_running_or_notify_cancel():
                batch.future.set_exception(Draining("the service is stopping: the text was not encoded"))

    async def _encode(
        self, priority: int, encode: Callable[[Sequence[str]], _Encoded], batches: Sequence[Sequence[str]]
    ) -> _Encoded:
        if self._closed:
            raise Draining("the service is stopping: the text was not encoded")
        queued = [_Batch(priority, next(self._numbers), encode, texts) for texts in batches]
        for batch in queued:
            self._batches.put(batch)
        try:
            parts = await asyncio.gather(*(asyncio.wrap_future(batch.future) for batch in queued))
        finally:
            for batch in queued:
                batch.future.cancel()  # nothing to a future that is done
        return [tokens for part in parts for tokens in part]

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        while True:
            batch = self._batches.get()
            if batch.encode is None:
                return
            if not batch.future.set_running_or_notify_cancel():
                continue
            try:
                batch.future.set_result(batch.encode(batch.texts))
            except BaseException as error:  # it belongs to the call that waits
                batch.future.set_exception(error)

    def _count(self, kind: str, encoded: _Encoded) -> None:
        self._metrics.encoded_texts.labels(kind).inc(len(encoded))
        self._metrics.encode_tokens.labels(kind).inc(sum(len(tokens) for tokens in encoded))


def _split(texts: Sequence[str]) -> list[Sequence[str]]:
    """Cut texts, longest first, into batches of at most 16 whose padded size is bounded too."""
    batches: list[Sequence[str]] = []
    start = 0
    while start < len(texts):
        fitting = max(1, _BATCH_CHARACTERS // max(1, len(texts[start])))
        size = min(_BATCH_DOCUMENTS, fitting)
        batches.append(texts[start : start + size])
        start += size
    return batches
