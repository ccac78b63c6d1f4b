"""Requests that wait together are looked up, scored and ranked together, and answered as each alone is."""

import asyncio
import threading

import numpy as np
import pytest

from maxsim_serve.engine import CpuScorer, Engine, InlineCandidates, StoredCandidates, WholeCollection
from maxsim_serve.errors import DeviceLost
from maxsim_serve.metrics import Metrics
from maxsim_serve.store import Collection, CollectionSpec, NewDocument, Store

DIM = 16
DOCUMENTS = 60
STICKY = RuntimeError("CUDA error: an illegal memory access was encountered")


class Scorer(CpuScorer):
    """The CPU's, as many batches deep as is said, which remembers them."""

    def __init__(self, depth=1, error=None):
        self.depth = depth
        self.error = error
        self.batches = []

    def launch(self, requests):
        self.batches.append([request.resolved.count for request in requests])
        if self.error is not None:
            raise self.error
        return super().launch(requests)


@pytest.fixture
def store(tmp_path):
    store = Store.open(
        tmp_path, segment_bytes=1 << 16, compact_dead_share=0.3, budget_bytes=1 << 30, metrics=Metrics()
    )
    yield store
    store.close()


def filled(store, name, value=None):
    """d0, d1, …: random rows, or rows of one value."""
    collection = store.create_collection(CollectionSpec(name, DIM, "float16", normalize=False))
    put(collection, value, np.random.default_rng(len(name)))
    return collection


def put(collection, value, rng):
    def vectors(number):
        rows = 1 + number % 7
        return rng.standard_normal((rows, DIM), np.float32) if value is None else np.full((rows, DIM), value)

    documents = [NewDocument(f"d{number}", vectors(number), None, None) for number in range(DOCUMENTS)]
    collection.commit(collection.prepare(documents))


@pytest.fixture
def together(monkeypatch):
    """How many lists were looked up, call by call."""
    calls = []
    locate_all = Collection.locate_all

    def counted(collection, lists):
        calls.append((collection.spec.name, len(lists)))
        return locate_all(collection, lists)

    monkeypatch.setattr(Collection, "locate_all", counted)
    return calls


def answers(asked, scorer=None, max_batch_tokens=10**6):
    """What becomes of requests (query, candidates) that all wait before the engine starts."""

    async def run():
        engine = Engine(
            queue_depth=1000,
            max_batch_tokens=max_batch_tokens,
            retry_after_s=1.0,
            metrics=Metrics(),
            scorer=scorer or CpuScorer(),
        )
        waiting = [
            asyncio.ensure_future(engine.rank(query, of, top_n=5, explain=False, deadline_s=30.0))
            for query, of in asked
        ]
        await asyncio.sleep(0)
        engine.start()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        await engine.drain(5.0)
        return outcomes

    return asyncio.run(run())


def plain(outcome):
    if isinstance(outcome, BaseException):
        return type(outcome)
    values = outcome.positions, outcome.scores, outcome.missing
    return [value.tolist() for value in values], outcome.candidates, outcome.document_tokens


def query(number):
    return np.random.default_rng(number).standard_normal((4, DIM), np.float32)


@pytest.mark.parametrize("depth", [1, 2], ids="depth{}".format)
def test_all_kinds_of_requests_together_are_answered_as_each_alone(store, together, depth):
    one, other = filled(store, "one"), filled(store, "other")
    lists = [
        ["d3", "d1", "d2"],
        [],
        ["d5", "nobody", "d5", "", "x" * 40, "é"],
        ["nobody"],
        [f"d{number}" for number in range(DOCUMENTS)],
        [["no id"]],
        ("d7", "d8"),
        ["d9", {}],
    ]
    kinds = [StoredCandidates(store, ids) for ids in lists for store in (one, other)]
    kinds.insert(3, WholeCollection(one))
    kinds.insert(5, InlineCandidates([query(1), query(2)]))
    asked = [(query(number), of) for number, of in enumerate(kinds * 3)]
    alone = [plain(answers([request])[0]) for request in asked]
    assert together == []
    assert [plain(outcome) for outcome in answers(asked, Scorer(depth))] == alone
    assert alone.count(TypeError) == 2 * 2 * 3
    assert {name for name, _ in together} == {"one", "other"} and max(lists for _, lists in together) > 8


@pytest.mark.parametrize("waiting", [1, 64, 150], ids="waiting{}".format)
def test_all_that_waits_is_one_batch_first_come_first_served(store, together, waiting):
    collection, scorer = filled(store, "one"), Scorer()
    counts = [1 + n % 50 for n in range(waiting)]
    answers(
        [(query(n), StoredCandidates(collection, ["d1"] * count)) for n, count in enumerate(counts)], scorer
    )
    assert scorer.batches == [counts]
    assert [lists for _, lists in together] == {1: [], 64: [64], 150: [64, 64, 22]}[waiting]


def test_what_was_looked_up_and_has_no_room_is_in_the_next_batch(store, together):
    collection, scorer = filled(store, "one"), Scorer()
    asked = [(query(n), StoredCandidates(collection, ["d0"] * (10 + n % 2))) for n in range(40)]
    outcomes = answers(asked, scorer, max_batch_tokens=100)
    assert [plain(outcome) for outcome in outcomes] == [plain(answers([request])[0]) for request in asked]
    assert [len(batch) for batch in scorer.batches] == [10] * 4
    assert together[0] == ("one", 40)


def test_a_lost_device_fails_those_that_are_looked_up_already(store, together):
    collection, scorer = filled(store, "one"), Scorer(error=STICKY)
    asked = [(query(n), StoredCandidates(collection, ["d0"] * 10)) for n in range(40)]
    outcomes = answers(asked, scorer, max_batch_tokens=100)
    assert [type(outcome) for outcome in outcomes] == [DeviceLost] * 40
    assert len(scorer.batches) == 1 and together == [("one", 40)]


def test_amid_updates_every_request_sees_its_documents_as_of_one_moment(store, together):
    """All rows of a generation have one value, so that all of its scores are the same."""
    collection = filled(store, "one", value=1.0)
    rng = np.random.default_rng(8)
    ended = threading.Event()

    def write():
        value = 1
        while not ended.is_set():
            value = value % 60 + 1
            put(collection, float(value), rng)
            collection.delete(["d0"])

    writer = threading.Thread(target=write)
    writer.start()
    row = np.full((1, DIM), 1.0, np.float32)
    every = [f"d{number}" for number in range(1, DOCUMENTS)]
    moments = set()
    try:
        for _ in range(200):
            asked = [(row, StoredCandidates(collection, rng.permutation(every).tolist())) for _ in range(20)]
            for outcome in answers(asked):
                assert len(outcome.missing) == 0
                (score,) = set(outcome.scores.tolist())
                moments.add(score)
            if len(moments) > 10:
                break
    finally:
        ended.set()
        writer.join()
    assert len(moments) > 10 and max(lists for _, lists in together) == 20
