"""The engine over a real store: rankings, batching, and what happens to requests that cannot be served."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import maxsim
from maxsim_serve.engine import (
    CpuScorer,
    Engine,
    InlineCandidates,
    Ranking,
    StoredCandidates,
    WholeCollection,
)
from maxsim_serve.engine.candidates import Resolved
from maxsim_serve.engine.scorer import Scored
from maxsim_serve.errors import DeadlineExceeded, Draining, InvalidInput, OutOfMemory, QueueFull
from maxsim_serve.metrics import Metrics
from maxsim_serve.store import Collection, CollectionSpec, NewDocument, Part, Store

DIM = 48
LENGTHS = [1, 17, 63, 111, 2, 5, 30, 64, 65, 7, 9, 128]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def collection(tmp_path: Path, metrics: Metrics) -> Iterator[Collection]:
    rng = np.random.default_rng(3)
    # Small segments, so that the documents lie in several tensors.
    store = Store.open(
        tmp_path, segment_bytes=16384, compact_dead_share=0.5, budget_bytes=1 << 30, metrics=metrics
    )
    collection = store.create_collection(CollectionSpec("c", DIM, "float16", normalize=False))
    documents = [
        NewDocument(f"d{i}", rng.standard_normal((n, DIM), dtype=np.float32), None, None)
        for i, n in enumerate(LENGTHS)
    ]
    collection.commit(collection.prepare(documents))
    yield collection
    store.close()


@pytest.fixture
def query() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((9, DIM), dtype=np.float32)


def make_engine(metrics: Metrics, queue_depth: int = 64) -> Engine:
    return Engine(queue_depth=queue_depth, max_batch_tokens=10**6, retry_after_s=2.0, metrics=metrics)


async def stopping(engine: Engine) -> AsyncIterator[Engine]:
    engine.start()
    yield engine
    await engine.drain(5.0)


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


def expected(query: np.ndarray, collection: Collection, ids: list[str]) -> torch.Tensor:
    """fp64 MaxSim of the stored rows."""
    rows = [torch.from_numpy(collection.get(i).vectors).double() for i in ids]
    q = torch.from_numpy(query).double()
    return torch.stack([(q @ r.T).amax(1).sum() for r in rows])


async def rank(engine: Engine, query: np.ndarray, candidates: object, **options: object) -> Ranking:
    settings = {"top_n": None, "explain": False, "deadline_s": 10.0} | options
    return await engine.rank(query, candidates, **settings)  # type: ignore[arg-type]


class Gate:
    """Candidates that hold the engine's thread until they are opened, so that others queue up behind."""

    dim = DIM
    normalize = False

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def resolve(self) -> Resolved:
        self.entered.set()
        assert self.opened.wait(10)
        return Resolved([], 0, np.empty(0, dtype=np.int64), 0)


class Recorder(StoredCandidates):
    """Stored candidates that tell whether they were looked at."""

    looked_at = False

    def resolve(self) -> Resolved:
        type(self).looked_at = True
        return super().resolve()


async def hold(engine: Engine, query: np.ndarray) -> tuple[Gate, "asyncio.Task[Ranking]"]:
    gate = Gate()
    task = asyncio.create_task(rank(engine, query, gate))
    while not gate.entered.is_set():
        await asyncio.sleep(0.001)
    return gate, task


def test_stored_candidates_are_ranked_as_the_reference_ranks_them(collection, query, metrics):
    ids = [f"d{i}" for i in (11, 3, 0, 7, 2, 3)]

    async def body() -> None:
        async for engine in stopping(make_engine(metrics)):
            ranking = await rank(engine, query, StoredCandidates(collection, ids))
            want = expected(query, collection, ids)
            order = sorted(range(len(ids)), key=lambda i: (-float(want[i]), i))
            assert ranking.positions.tolist() == order
            np.testing.assert_allclose(ranking.scores, want[order].numpy(), rtol=2e-6)
            assert ranking.candidates == 6
            assert ranking.document_tokens == sum(LENGTHS[int(i[1:])] for i in ids)
            assert set(ranking.timings_s) == {"queue", "lookup", "kernel", "topk"}
            assert ranking.engine_s >= sum(ranking.timings_s.values()) - ranking.timings_s["queue"]
            stored = torch.zeros(1, DIM, dtype=torch.float16)
            assert ranking.kernel == maxsim.plan(torch.from_numpy(query), stored).kernel

    run(body)
    launches = metrics.registry.get_sample_value(
        "maxsim_kernel_launches_total",
        {"kernel": maxsim.plan(*[torch.zeros(1, DIM)] * 2).kernel, "dtype": "float16"},
    )
    assert launches == 1  # over several segments


def test_ids_that_are_not_stored_are_missing_and_never_ranked(collection, query, metrics):
    ids = ["d1", "nobody", "d2", "d1", "no/one"]

    async def body() -> None:
        async for engine in stopping(make_engine(metrics)):
            ranking = await rank(engine, query, StoredCandidates(collection, ids))
            assert sorted(ranking.positions.tolist()) == [0, 2, 3]
            assert ranking.missing.tolist() == [1, 4]
            scores = dict(zip(ranking.positions.tolist(), ranking.scores.tolist(), strict=True))
            assert scores[0] == scores[3]
            nothing = await rank(engine, query, StoredCandidates(collection, ["x", "y"]))
            assert nothing.positions.tolist() == []
            assert nothing.missing.tolist() == [0, 1]

    run(body)
    assert metrics.registry.get_sample_value("maxsim_missing_ids_total") == 4


@pytest.mark.parametrize(
    ("top_n", "count"),
    [(1, 1), (5, 5), (12, 12), (2**31, 12), (None, 12)],
    ids=["n1", "n5", "n12", "n2^31", "all"],
)
def test_top_n_of_a_whole_collection(collection, query, metrics, top_n, count):
    async def body() -> None:
        async for engine in stopping(make_engine(metrics)):
            ranking = await rank(engine, query, WholeCollection(collection), top_n=top_n)
            everything = [f"d{i}" for i in range(len(LENGTHS))]
            want = expected(query, collection, everything)
            order = sorted(range(len(LENGTHS)), key=lambda i: (-float(want[i]), i))[:count]
            assert ranking.ids == [everything[i] for i in order]

    run(body)


def test_scores_are_bit_identical_on_every_way_in(collection, query, metrics):
    ids = [f"d{i}" for i in range(len(LENGTHS))]
    shuffled = [ids[i] for i in np.random.default_rng(5).permutation(len(ids))]

    async def by_id(engine: Engine, some: list[str]) -> dict[str, float]:
        ranking = await rank(engine, query, StoredCandidates(collection, some))
        return {some[p]: s for p, s in zip(ranking.positions.tolist(), ranking.scores.tolist(), strict=True)}

    async def body() -> None:
        async for engine in stopping(make_engine(metrics)):
            together = await by_id(engine, ids)
            assert await by_id(engine, shuffled) == together
            alone = {}
            for one in ids:
                alone |= await by_id(engine, [one])
            assert alone == together
            whole = await rank(engine, query, WholeCollection(collection))
            assert dict(zip(whole.ids, whole.scores.tolist(), strict=True)) == together
            inline = await rank(engine, query, InlineCandidates([collection.get(i).vectors for i in ids]))
            assert {
                ids[p]: s for p, s in zip(inline.positions.tolist(), inline.scores.tolist(), strict=True)
            } == together
            gate, held = await hold(engine, query)
            crowd = [asyncio.create_task(by_id(engine, ids)) for _ in range(5)]
            await asyncio.sleep(0.01)
            gate.opened.set()
            assert await asyncio.gather(*crowd) == [together] * 5
            await held

    run(body)
    # The crowd and the request that held it up went out as one work list of six.
    assert metrics.registry.get_sample_value("maxsim_batch_requests_bucket", {"le": "4.0"}) == (
        metrics.registry.get_sample_value("maxsim_batch_requests_count") - 1
    )


def test_a_large_request_goes_by_itself_and_holds_up_nobody_before_it(
    collection, query, metrics, monkeypatch
):
    batches = []
    launch = CpuScorer.launch

    def seen(scorer, requests):
        batches.append([request.resolved.tokens for request in requests])
        return launch(scorer, requests)

    monkeypatch.setattr(CpuScorer, "launch", seen)
    everything = sum(LENGTHS)
    small, large = LENGTHS[1], everything
    wanted = []

    async def body() -> None:
        one = Engine(queue_depth=64, max_batch_tokens=4 * everything, retry_after_s=2.0, metrics=metrics)
        async for engine in stopping(one):
            gate, held = await hold(engine, query)
            asked = ["d1", None, "d1", "d1", None, None, "d1"]
            waiting = []
            for id in asked:
                candidates = WholeCollection(collection) if id is None else StoredCandidates(collection, [id])
                waiting.append(asyncio.create_task(rank(engine, query, candidates)))
                await asyncio.sleep(0.005)
            gate.opened.set()
            rankings = await asyncio.gather(*waiting)
            await held
            wanted.extend(
                len(ranking.scores) == (len(LENGTHS) if id is None else 1)
                for ranking, id in zip(rankings, asked, strict=True)
            )

    run(body)
    assert all(wanted) and len(wanted) == 7
    assert batches[0][1:] == [small]  # with the one that held them up
    assert batches[1:] == [[large], [small, small], [large], [large], [small]]


def test_rows_in_a_gpus_memory_make_larger_batches(query, metrics):
    batches = []

    class Scorer(CpuScorer):
        def launch(self, requests):
            batches.append([request.resolved.count for request in requests])
            scored = Scored([np.zeros(2, np.float32) for _ in requests], [], {})
            return SimpleNamespace(glance=lambda: None, wait=lambda: scored)

    class Documents:
        dim = DIM
        normalize = False

        def __init__(self, on_gpu: bool, host_tokens: object = None) -> None:
            rows = np.array([0, 50]), np.array([50, 50])
            part = Part(SimpleNamespace(is_cuda=on_gpu), *rows, np.arange(2), host_tokens)
            self.resolve = lambda: Resolved([part], 2, np.empty(0, np.int64), 100)

    async def body() -> None:
        for kind in ((True,), (True, "pinned"), (False,)):
            one = Engine(
                queue_depth=64, max_batch_tokens=500, retry_after_s=2.0, metrics=metrics, scorer=Scorer()
            )
            async for engine in stopping(one):
                gate, held = await hold(engine, query)
                crowd = [asyncio.create_task(rank(engine, query, Documents(*kind))) for _ in range(20)]
                await asyncio.sleep(0.01)
                gate.opened.set()
                await asyncio.gather(held, *crowd)

    run(body)
    # Up to 500 tokens, 20 of 25 or 5 of 100, beside the one that held them up.
    assert [len(batch) for batch in batches] == [21, *2 * (1 + 5, 5, 5, 5)]


def test_explanations_name_the_winning_tokens(collection, query, metrics):
    async def body() -> None:
        async for engine in stopping(make_engine(metrics)):
            ranking = await rank(engine, query, WholeCollection(collection), top_n=3, explain=True)
            assert len(ranking.explanations) == 3
            for name, score, explained in zip(ranking.ids, ranking.scores, ranking.explanations, strict=True):
                similarities = query.astype(np.float64) @ collection.get(name).vectors.astype(np.float64).T
                assert explained.tokens.tolist() == similarities.argmax(1).tolist()
                np.testing.assert_allclose(explained.similarities.sum(), score, rtol=1e-5)

    run(body)


def test_a_query_of_another_width_is_refused_before_it_is_queued(collection, metrics):
    async def body() -> None:
        engine = make_engine(metrics)  # never started: whatever is queued would hang
        with pytest.raises(InvalidInput, match="query has 40 columns, the documents have 48"):
            await rank(engine, np.ones((2, 40), np.float32), StoredCandidates(collection, ["d1"]))

    run(body)


def test_past_the_queue_depth_requests_are_refused_with_a_time_to_come_back(collection, query, metrics):
    async def body() -> None:
        async for engine in stopping(make_engine(metrics, queue_depth=2)):
            gate, held = await hold(engine, query)
            waiting = [
                asyncio.create_task(rank(engine, query, StoredCandidates(collection, ["d1"])))
                for _ in range(2)
            ]
            await asyncio.sleep(0.01)
            assert metrics.registry.get_sample_value("maxsim_queue_depth") == 2
            with pytest.raises(QueueFull, match="queue_depth") as caught:
                await rank(engine, query, StoredCandidates(collection, ["d1"]))
            assert caught.value.retry_after_s == 2.0
            gate.opened.set()
            await asyncio.gather(held, *waiting)

    run(body)
    assert metrics.registry.get_sample_value("maxsim_rejected_total", {"reason": "queue_full"}) == 1


def test_an_abandoned_request_is_never_looked_at(collection, query, metrics):
    async def body() -> None:
        async for engine in stopping(make_engine(metrics)):
            gate, held = await hold(engine, query)
            leaver = asyncio.create_task(rank(engine, query, Recorder(collection, ["d1"])))
            await asyncio.sleep(0.01)
            leaver.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaver
            gate.opened.set()
            await held
            await rank(engine, query, StoredCandidates(collection, ["d1"]))

    Recorder.looked_at = False
    run(body)
    assert not Recorder.looked_at
    assert metrics.registry.get_sample_value("maxsim_rejected_total", {"reason": "abandoned"}) == 1


def test_a_request_that_waited_past_its_deadline_is_not_scored(collection, query, metrics):
    async def body() -> None:
        async for engine in stopping(make_engine(metrics)):
            gate, held = await hold(engine, query)
            late = asyncio.create_task(rank(engine, query, Recorder(collection, ["d1"]), deadline_s=0.02))
            await asyncio.sleep(0.05)
            gate.opened.set()
            with pytest.raises(DeadlineExceeded, match="deadline_s"):
                await late
            await held

    Recorder.looked_at = False
    run(body)
    assert not Recorder.looked_at
    assert metrics.registry.get_sample_value("maxsim_rejected_total", {"reason": "deadline"}) == 1


def test_draining_finishes_what_waits_and_takes_nothing_more(collection, query, metrics):
    async def body() -> None:
        engine = make_engine(metrics)
        engine.start()
        assert engine.ready
        gate, held = await hold(engine, query)
        waiting = asyncio.create_task(rank(engine, query, StoredCandidates(collection, ["d1"])))
        await asyncio.sleep(0.01)
        draining = asyncio.create_task(engine.drain(5.0))
        await asyncio.sleep(0.01)
        assert not engine.ready
        with pytest.raises(Draining):
            await rank(engine, query, StoredCandidates(collection, ["d1"]))
        gate.opened.set()
        assert await draining
        assert (await waiting).positions.tolist() == [0]
        await held

    run(body)


def test_out_of_memory_fails_the_request_that_caused_it_and_no_other(collection, query, metrics, monkeypatch):
    real = maxsim.score_pairs

    def limited(queries, documents, query_index, document_index):
        if (documents.lengths == LENGTHS[11]).any():
            raise MemoryError("no room")
        return real(queries, documents, query_index, document_index)

    monkeypatch.setattr(maxsim, "score_pairs", limited)

    async def body() -> None:
        async for engine in stopping(make_engine(metrics)):
            gate, held = await hold(engine, query)
            good = asyncio.create_task(rank(engine, query, StoredCandidates(collection, ["d10", "d1"])))
            big = asyncio.create_task(rank(engine, query, StoredCandidates(collection, ["d11"])))
            await asyncio.sleep(0.01)
            gate.opened.set()
            with pytest.raises(OutOfMemory, match="128 document tokens"):
                await big
            assert len((await good).positions) == 2
            await held

    run(body)
    assert metrics.registry.get_sample_value("maxsim_oom_total") == 1


def test_queries_of_a_normalizing_collection_are_normalized(tmp_path, metrics):
    async def body() -> None:
        async for engine in stopping(make_engine(metrics)):
            query = np.array([[3.0] + [0.0] * 15], dtype=np.float32)
            ranking = await rank(engine, query, WholeCollection(collection))
            assert ranking.scores.tolist() == [1.0]

    with_norm = Store.open(
        tmp_path, segment_bytes=4096, compact_dead_share=0.5, budget_bytes=1 << 30, metrics=metrics
    )
    collection = with_norm.create_collection(CollectionSpec("n", 16, "float32", normalize=True))
    collection.commit(
        collection.prepare([NewDocument("a", np.array([[7.0] + [0.0] * 15], np.float32), None, None)])
    )
    run(body)
    with_norm.close()
