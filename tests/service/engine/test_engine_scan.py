"""Searches of a whole collection in host memory: which are scanned, and that they answer as the others do.

Without a GPU the driver is faked: streams and events that have nothing to wait for, in the host's memory.
"""

import asyncio
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import maxsim
from maxsim.topk import Running
from maxsim_serve.engine import CpuScorer, Engine, StoredCandidates, WholeCollection, make_scorer, warm_up
from maxsim_serve.engine.candidates import Resolved
from maxsim_serve.engine.gpu import GpuScorer
from maxsim_serve.engine.scan import ScanningScorer, is_scan
from maxsim_serve.engine.scorer import Best, Request
from maxsim_serve.metrics import Metrics
from maxsim_serve.store import CollectionSpec, NewDocument, Part, Store, gpu_tiers

DIM, DOCUMENTS, LENGTH = 128, 500, 80  # 10 MB in float16
NOTHING = np.empty(0, np.int64)


class FakeStream:
    def __init__(self, device=None):
        pass

    def wait_event(self, event):
        pass

    def wait_stream(self, stream):
        pass

    def synchronize(self):
        self.synchronized = True


class FakeEvent:
    def __init__(self, enable_timing=False, blocking=False):
        pass

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 2.0


@pytest.fixture
def scorer(monkeypatch):
    stream, empty = FakeStream(), torch.empty
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device=None: stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **options: empty(*shape, **options))
    scorer = ScanningScorer(GpuScorer(torch.device("cpu"), "stored"))
    scorer.bind()
    return scorer


def collection(lengths=(LENGTH,) * DOCUMENTS, gap_rows=1, whole=True, on_device_alone=False):
    """Documents in two orders: rows descend where positions ascend. Poison between them."""
    lengths = torch.tensor(lengths)
    starts = lengths.cumsum(0) - lengths + gap_rows * torch.arange(len(lengths))
    tokens = torch.full((int(starts[-1] + lengths[-1]) + 1, DIM), torch.nan, dtype=torch.float16)
    generator = torch.Generator().manual_seed(3)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        tokens[start : start + length] = torch.randn(length, DIM, generator=generator)
    host_tokens = None if on_device_alone else tokens
    count = len(lengths)
    part = Part(tokens, starts.flip(0).numpy(), lengths.flip(0).numpy(), np.arange(count), host_tokens)
    ids = [f"d{n}" for n in range(count)] if whole else None
    return Resolved([part], count, NOTHING, int(lengths.sum()), ids)


def request(resolved, wanted, rows=5, seed=1):
    query = torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))
    return Request(query.half().float().numpy(), resolved, wanted)


@pytest.mark.parametrize(
    ("resolved", "wanted", "scanned"),
    [
        pytest.param(collection(), 10, True, id="a few of all"),
        pytest.param(collection(), DOCUMENTS // 2, True, id="half of all"),
        pytest.param(collection(), DOCUMENTS // 2 + 1, False, id="more than half of all"),
        pytest.param(collection(), 0, False, id="none"),
        pytest.param(collection(whole=False), 10, False, id="named documents"),
        pytest.param(collection(on_device_alone=True), 10, False, id="on the device"),
        pytest.param(collection((LENGTH,) * 300), 10, False, id="small"),
        pytest.param(collection(gap_rows=2 * LENGTH), 10, True, id="a third of the rows"),
        pytest.param(collection(gap_rows=4 * LENGTH), 10, False, id="a fifth of the rows"),
        pytest.param(Resolved([], 0, NOTHING, 0, []), 0, False, id="empty"),
    ],
)
def test_what_is_scanned(resolved, wanted, scanned):
    assert is_scan(request(resolved, wanted)) is scanned


def test_a_scan_answers_as_the_others_do_and_counts_what_it_copies(scorer, monkeypatch):
    streamed = []
    real = maxsim.stream

    def watched(query, documents, k, **options):
        streamed.append((query.dtype, k))
        assert options["slab_bytes"] == 256 << 20
        return real(query, documents, k, **options)

    monkeypatch.setattr(maxsim, "stream", watched)
    whole, some = collection(), collection((7, 1, 63), whole=False)
    batch = [request(whole, 20), request(some, 3, seed=2), request(whole, 7, rows=70, seed=3)]
    kernel = maxsim.plan(torch.from_numpy(batch[0].query).half(), whole.parts[0].tokens).kernel
    size_bytes = whole.tokens * DIM * 2
    staging_bytes = []
    for round_number in range(3):
        launched = scorer.launch(batch)
        assert len(streamed) == 2 * round_number  # not before it is waited for
        scored = launched.wait()
        assert streamed[2 * round_number :] == [(torch.float16, 20), (torch.float16, 7)]
        staging_bytes.append(scorer.staging_bytes)
        first, second, third = scored.results
        assert isinstance(first, Best) and isinstance(third, Best)
        for found, asked in zip((first, third), (batch[0], batch[2]), strict=True):
            every = CpuScorer().launch([asked]).wait().results[0]
            best = maxsim.top_k(torch.from_numpy(every), asked.wanted)
            assert found.positions.tolist() == best.indices.tolist()
            assert found.scores.tolist() == best.values.tolist()
        assert second.tolist() == CpuScorer().launch([batch[1]]).wait().results[0].tolist()
        gaps_bytes = (DOCUMENTS - 1) * DIM * 2
        assert 2 * size_bytes < scored.moved_bytes["up"] < 2 * (size_bytes + gaps_bytes) + (1 << 16)
        assert scored.launches == [(kernel, torch.float16)] * 3
        assert scored.stages_s["kernel"] == pytest.approx(3 * 2e-3)
    assert staging_bytes[1] == staging_bytes[2] > 2 * (128 << 20)  # two batches have buffers of their own


def test_a_scan_that_fails_lets_go_of_nothing_that_is_still_copied(scorer, monkeypatch):
    asked = request(collection(), 20)

    def failing(self, scores, positions):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(Running, "add", failing)
        with pytest.raises(torch.OutOfMemoryError):
            scorer.launch([asked]).wait()
    assert torch.cuda.current_stream().synchronized
    every = CpuScorer().launch([asked]).wait().results[0]
    (found,) = scorer.launch([asked]).wait().results
    assert found.positions.tolist() == maxsim.top_k(torch.from_numpy(every), 20).indices.tolist()


def test_a_collection_that_changes_is_scanned_as_it_is_then(scorer, tmp_path):
    rng = np.random.default_rng(5)

    def document(name):
        return NewDocument(name, rng.standard_normal((LENGTH, DIM), dtype=np.float32))

    with Store.open(
        tmp_path, segment_bytes=1 << 21, compact_dead_share=1.0, budget_bytes=1 << 28, metrics=Metrics()
    ) as store:
        papers = store.create_collection(CollectionSpec("papers", DIM))
        papers.commit(papers.prepare([document(f"d{n}") for n in range(DOCUMENTS)]))
        for _ in range(2):
            papers.commit(papers.prepare([document(f"d{n}") for n in range(0, DOCUMENTS, 3)]))
            papers.delete([f"d{n}" for n in range(1, 40, 3)])
            papers.commit(papers.prepare([document(f"d{n}") for n in range(1, 40, 6)]))
            asked = request(WholeCollection(papers).resolve(), 50)
            assert is_scan(asked)
            (found,) = scorer.launch([asked]).wait().results
            every = CpuScorer().launch([asked]).wait().results[0]
            best = maxsim.top_k(torch.from_numpy(every), 50)
            assert found.positions.tolist() == best.indices.tolist()
            assert found.scores.tolist() == best.values.tolist()


# On a GPU.


@pytest.fixture
def pinned(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    tiers = gpu_tiers(
        torch.device("cuda", 0), host_budget_bytes=1 << 30, gpu_budget_bytes=1 << 26, segment_bytes=1 << 26
    )
    # Compacts never, so that dead rows lie between; rows of 192 bytes, which a slab's end cuts.
    with Store.open(
        tmp_path, segment_bytes=1 << 26, compact_dead_share=1.0, budget_bytes=1 << 30, tiers=tiers,
        metrics=Metrics(),
    ) as store:  # fmt: skip
        yield store.create_collection(CollectionSpec("papers", 96, tier="host"))
    torch.cuda.synchronize()
    tiers["host"].memory.close()


def put(papers, ids, seed):
    rng = np.random.default_rng(seed)
    for first in range(0, len(ids), 2000):
        some = ids[first : first + 2000]
        lengths = rng.integers(1, 200, len(some)).tolist()
        documents = [
            NewDocument(id, rng.standard_normal((length, 96), dtype=np.float32))
            for id, length in zip(some, lengths, strict=True)
        ]
        papers.commit(papers.prepare(documents))


def by_the_library(papers, query, k):
    """Ids and scores from a copy on the device."""
    snapshot = papers.snapshot()
    (part,) = snapshot.parts
    device = part.tokens.device
    rows = [
        part.host_tokens[s : s + n] for s, n in zip(part.starts.tolist(), part.lengths.tolist(), strict=True)
    ]
    documents = maxsim.Ragged.from_list(rows)
    documents = maxsim.Ragged(documents.tokens.to(device), documents.offsets.to(device))
    best = maxsim.top_k(maxsim.score(torch.from_numpy(query).to(device, torch.float16), documents)[0], k)
    return [snapshot.ids[n] for n in best.indices.tolist()], best.values.tolist()


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_a_search_of_host_memory_answers_as_the_library_does_amid_reranks_and_updates(pinned):
    metrics = Metrics()
    device = torch.device("cuda", 0)
    warm_up(device, [(96, torch.float16)], metrics)
    scorer = make_scorer(device, "stored", 0, metrics)
    ids = [f"d{n}" for n in range(20_000)]
    put(pinned, ids, 1)
    (part,) = pinned.snapshot().parts
    assert int((part.starts + part.lengths).max()) * 192 > 256 << 20
    rng = np.random.default_rng(4)

    async def rank(engine, query, candidates, top_n):
        return await engine.rank(query, candidates, top_n=top_n, explain=False, deadline_s=60.0)

    async def check(engine):
        query, other = (rng.standard_normal((n, 96), dtype=np.float32) for n in (32, 80))
        live = pinned.snapshot().ids
        some = [live[n] for n in rng.integers(0, len(live), 500).tolist()]
        reranks = [rank(engine, query, StoredCandidates(pinned, some), None) for _ in range(8)]
        found = await asyncio.gather(
            rank(engine, query, WholeCollection(pinned), 100),
            *reranks,
            rank(engine, other, WholeCollection(pinned), 3000),
        )
        for ranking, asked, k in ((found[0], query, 100), (found[-1], other, 3000)):
            wanted_ids, wanted_scores = by_the_library(pinned, asked, k)
            assert ranking.ids == wanted_ids
            assert ranking.scores.tolist() == wanted_scores
        assert len({tuple(one.scores.tolist()) for one in found[1:-1]}) == 1

    async def run():
        engine = Engine(
            queue_depth=64, max_batch_tokens=2_000_000, retry_after_s=1.0, metrics=metrics, scorer=scorer
        )
        engine.start()
        try:
            await check(engine)
            # Gaps of all sizes, and documents whose rows come in another order than they do.
            for seed in range(2, 5):
                await asyncio.to_thread(put, pinned, ids[:: 2 * seed], seed)
                await asyncio.to_thread(pinned.delete, ids[seed * 1000 : seed * 1000 + 900])
                await check(engine)
        finally:
            await engine.drain(60.0)

    asyncio.run(run())
    up = metrics.registry.get_sample_value("maxsim_stream_bytes_total", {"direction": "up"})
    assert up > 8 * 0.8 * 20_000 * 100 * 192  # both searches of each of four rounds were scanned
    assert metrics.registry.get_sample_value("maxsim_kernel_compilations_total", {"phase": "live"}) == 0
    assert 256 << 20 < scorer.staging_bytes < 300 << 20
