import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from maxsim_serve.encode import EncodeWorker
from maxsim_serve.errors import Draining
from maxsim_serve.metrics import Metrics


class Recorder:
    """An encoder that writes down its batches, and waits before each one while `gate` is closed.

    A poisoned batch fails and closes the gate. A text of n characters becomes n rows that all hold n.
    """

    name = "recorder"
    dim = 8

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def encode_queries(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return self._encode("query", texts)

    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return self._encode("document", texts)

    def _encode(self, kind: str, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        self.batches.append((kind, list(texts)))
        self.started.set()
        assert self.gate.wait(10)
        if "poison" in texts:
            self.gate.clear()
            raise RuntimeError("poisoned")
        return [np.full((len(text), self.dim), len(text), np.float32) for text in texts]


@pytest.fixture
def encoder() -> Recorder:
    return Recorder()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def worker(encoder: Recorder, metrics: Metrics) -> Iterator[EncodeWorker]:
    worker = EncodeWorker(encoder, metrics)
    yield worker
    encoder.gate.set()
    worker.close()


async def until_started(encoder: Recorder) -> None:
    assert await asyncio.to_thread(encoder.started.wait, 10)


def counted(metrics: Metrics, name: str, kind: str) -> float | None:
    return metrics.registry.get_sample_value(f"maxsim_{name}_total", {"kind": kind})


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 63])
def test_documents_come_back_in_order(count: int, worker: EncodeWorker, encoder: Recorder) -> None:
    texts = ["x" * (1 + i * 7 % 23) for i in range(count)]
    encoded = asyncio.run(worker.encode_documents(texts))
    assert [len(tokens) for tokens in encoded] == [len(text) for text in texts]
    assert all(len(batch) <= 16 for _, batch in encoder.batches)
    assert len(encoder.batches) == -(-count // 16)


def test_a_batch_holds_alike_lengths_and_few_long_texts(worker: EncodeWorker, encoder: Recorder) -> None:
    asyncio.run(worker.encode_documents(["long" * 750, "s", "long" * 750, "ss", "s"]))
    assert [[len(text) for text in batch] for _, batch in encoder.batches] == [[3000, 3000], [2, 1, 1]]


def test_texts_and_rows_are_counted(worker: EncodeWorker, metrics: Metrics) -> None:
    async def work() -> None:
        await worker.encode_documents(["abc", "de"])
        await worker.encode_queries(["abcd"])

    asyncio.run(work())
    assert counted(metrics, "encoded_texts", "document") == 2
    assert counted(metrics, "encode_tokens", "document") == 5
    assert counted(metrics, "encoded_texts", "query") == 1
    assert counted(metrics, "encode_tokens", "query") == 4


def test_a_query_overtakes_waiting_documents(worker: EncodeWorker, encoder: Recorder) -> None:
    async def work() -> None:
        encoder.gate.clear()
        documents = asyncio.create_task(worker.encode_documents(["d"] * 48))
        await until_started(encoder)
        query = asyncio.create_task(worker.encode_queries(["q"]))
        await asyncio.sleep(0.05)
        encoder.gate.set()
        await asyncio.gather(documents, query)

    asyncio.run(work())
    assert [kind for kind, _ in encoder.batches] == ["document", "query", "document", "document"]


def test_cancelling_drops_what_waits(worker: EncodeWorker, encoder: Recorder, metrics: Metrics) -> None:
    async def work() -> None:
        encoder.gate.clear()
        documents = asyncio.create_task(worker.encode_documents(["d"] * 48))
        await until_started(encoder)
        documents.cancel()
        with pytest.raises(asyncio.CancelledError):
            await documents
        encoder.gate.set()
        await worker.encode_queries(["after"])

    asyncio.run(work())
    assert [kind for kind, _ in encoder.batches] == ["document", "query"]
    assert counted(metrics, "encoded_texts", "document") is None


def test_a_failing_batch_fails_its_call_alone_and_drops_the_rest_of_it(
    worker: EncodeWorker, encoder: Recorder
) -> None:
    async def work() -> None:
        with pytest.raises(RuntimeError, match="poisoned"):
            await worker.encode_documents(["poison"] * 16 + ["d"] * 160)
        encoder.gate.set()
        assert len((await worker.encode_queries(["next"]))[0]) == 4

    asyncio.run(work())
    assert len(encoder.batches) <= 3  # poison, at most one that had started, and the query


def test_close_fails_the_calls_that_wait_and_every_later_one(worker: EncodeWorker, encoder: Recorder) -> None:
    async def work() -> None:
        encoder.gate.clear()
        running = asyncio.create_task(worker.encode_queries(["running"]))
        await until_started(encoder)
        waiting = asyncio.create_task(worker.encode_documents(["waiting"]))
        await asyncio.sleep(0.05)
        threading.Timer(0.1, encoder.gate.set).start()
        worker.close()
        assert len((await running)[0]) == 7
        with pytest.raises(Draining):
            await waiting
        with pytest.raises(Draining):
            await worker.encode_queries(["late"])

    asyncio.run(work())


def test_the_event_loop_stays_free_while_a_text_is_encoded(worker: EncodeWorker, encoder: Recorder) -> None:
    async def work() -> float:
        encoder.gate.clear()
        threading.Timer(0.3, encoder.gate.set).start()
        pending = asyncio.create_task(worker.encode_queries(["slow"]))
        longest, last = 0.0, time.perf_counter()
        while not pending.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        return longest

    assert asyncio.run(work()) < 0.2
