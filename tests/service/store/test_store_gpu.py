"""The GPU's two tiers, on a GPU: rows are read where they are, and scores are those of a fresh store."""

import numpy as np
import pytest
import torch

import maxsim
from maxsim_serve.store import CollectionSpec, NewDocument, gpu_tiers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DIM = 128


@pytest.fixture
def tiers():
    tiers = gpu_tiers(
        torch.device("cuda"), host_budget_bytes=1 << 28, gpu_budget_bytes=1 << 28, segment_bytes=1 << 22
    )
    yield tiers
    torch.cuda.synchronize()
    tiers["host"].memory.close()


@pytest.fixture(params=["gpu", "host"])
def papers(request, open_store, tiers):
    store = open_store(tiers=tiers, segment_bytes=1 << 22, compact_dead_share=0.125)
    return store.create_collection(CollectionSpec("papers", DIM, tier=request.param))


def documents(ids, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 200, len(ids)).tolist()
    return [
        NewDocument(id, rng.standard_normal((length, DIM)).astype(np.float16))
        for id, length in zip(ids, lengths, strict=True)
    ]


def scores(part, query):
    spans = maxsim.Spans(
        part.tokens, torch.from_numpy(part.starts).cuda(), torch.from_numpy(part.lengths).cuda()
    )
    count = len(part.starts)
    return maxsim.score_pairs(
        maxsim.Ragged.from_list([query]),
        spans,
        torch.zeros(count, dtype=torch.int64, device="cuda"),
        torch.arange(count, device="cuda"),
    ).cpu()


def test_rows_are_scored_where_they_are(papers):
    papers.commit(papers.prepare(documents([f"d{n}" for n in range(500)], 1)))
    query = torch.randn(32, DIM, dtype=torch.float16)
    (part,) = papers.snapshot().parts
    assert part.tokens.is_cuda and (part.host_tokens is None) == (papers.info().tier == "gpu")
    if part.host_tokens is not None:
        assert part.host_tokens.data_ptr() == part.tokens.data_ptr()
    stored = maxsim.Ragged.from_list(
        [torch.from_numpy(papers.get(f"d{n}").vectors).half() for n in range(500)]
    )
    wanted = maxsim.score(query[None], stored)[0]
    torch.testing.assert_close(scores(part, query.cuda()), wanted, rtol=1e-4, atol=1e-3)


def test_a_storm_of_updates_leaves_what_a_fresh_store_has(papers, open_store, tmp_path):
    rng = np.random.default_rng(2)
    latest = {}
    for round_number in range(25):
        ids = [f"d{n}" for n in rng.permutation(600)[:180].tolist()]
        batch = documents(ids, round_number)
        papers.commit(papers.prepare(batch))
        latest |= {document.id: document for document in batch}
        gone = ids[:60]
        papers.delete(gone)
        for id in gone:
            del latest[id]
    papers.compact()
    query = torch.randn(32, DIM, dtype=torch.float16, device="cuda")
    fresh_tiers = gpu_tiers(
        torch.device("cuda"), host_budget_bytes=1 << 28, gpu_budget_bytes=1 << 28, segment_bytes=1 << 22
    )
    fresh = open_store(tmp_path / "fresh", tiers=fresh_tiers).create_collection(papers.spec)
    fresh.commit(fresh.prepare(list(latest.values())))
    ids = sorted(latest)
    (one,), (other,) = papers.locate(ids).parts, fresh.locate(ids).parts
    assert torch.equal(scores(one, query), scores(other, query))
    torch.cuda.synchronize()
    fresh_tiers["host"].memory.close()


@pytest.mark.parametrize("tier", ["gpu", "host"])
def test_opening_loads_the_same_rows(tier, open_store, tiers):
    store = open_store(tiers=tiers)
    papers = store.create_collection(CollectionSpec("papers", DIM, tier=tier))
    papers.commit(papers.prepare(documents([f"d{n}" for n in range(300)], 5)))
    before = [papers.get(f"d{n}").vectors for n in range(300)]
    store.close()
    again = open_store(tiers=tiers).collection("papers")
    for n in range(300):
        np.testing.assert_array_equal(again.get(f"d{n}").vectors, before[n])
