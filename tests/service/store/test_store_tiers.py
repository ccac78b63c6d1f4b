"""Tiers, with host memory in the part of the GPU's: where collections go, what moves them, what fails."""

import sqlite3
from itertools import pairwise

import numpy as np
import pytest

from maxsim_serve.errors import InvalidInput, OutOfSpace
from maxsim_serve.store import CollectionSpec, plan_gpu
from maxsim_serve.store.extents import Extents
from maxsim_serve.store.memory import HostMemory
from maxsim_serve.store.space import Budget
from maxsim_serve.store.tier import Tier, host_tier

DIM, ROW_BYTES = 16, 32


class FakeDevice(HostMemory):
    """Memory of the device alone, that can be made to fail."""

    def __init__(self, size_bytes):
        super().__init__(size_bytes)
        self.host_bytes = None
        self.exhausted = False

    def occupy(self, begin, end):
        if self.exhausted:
            raise MemoryError("made to fail")

    def read(self, begin, end):
        return super().read(begin, end).copy()


@pytest.fixture
def gpu():
    return Tier("gpu", FakeDevice(1 << 20), Budget(200 * ROW_BYTES, "gpu_budget_bytes"))


@pytest.fixture
def tiers(gpu):
    return {"gpu": gpu, "host": host_tier(1 << 20)}


def test_auto_takes_the_gpu_while_a_collection_fits(open_store, tiers, put, filled, contents, metrics):
    store = open_store(tiers=tiers)
    papers = store.create_collection(CollectionSpec("papers", DIM))
    put(papers, *(filled(f"d{n}", n, rows=30) for n in range(6)))
    papers.delete(["d1"])
    assert papers.info().tier == "gpu" and papers.locate(["d0"]).parts[0].host_tokens is None
    held, before = papers.locate(["d0", "d5"]), list(contents(papers).items())
    put(papers, filled("more", 9, rows=30))
    assert papers.info().tier == "host" and papers.locate(["d0"]).parts[0].host_tokens is not None
    assert list(contents(papers).items())[:-1] == before
    (part,) = held.parts
    assert part.tokens[part.starts, 0].tolist() == [0, 5]  # readers keep what they hold
    del held, part
    assert tiers["gpu"].budget.used_bytes == tiers["gpu"].extents.used_bytes == 0
    value = metrics.registry.get_sample_value
    assert value("maxsim_store_documents", {"collection": "papers", "tier": "gpu"}) is None
    assert value("maxsim_store_documents", {"collection": "papers", "tier": "host"}) == 6
    assert value("maxsim_store_capacity_bytes", {"tier": "gpu"}) == 200 * ROW_BYTES
    papers.compact()
    assert list(contents(papers).items())[:-1] == before


def test_a_collection_bound_to_the_gpu_does_not_pass_its_budget(open_store, tiers, put, filled, contents):
    store = open_store(tiers=tiers)
    papers = store.create_collection(CollectionSpec("papers", DIM, tier="gpu"))
    put(papers, filled("a", 1, rows=150))
    before = contents(papers)
    with pytest.raises(OutOfSpace) as caught:
        put(papers, filled("b", 1, rows=60))
    assert caught.value.param == "gpu_budget_bytes"
    assert contents(papers) == before and papers.info().tier == "gpu"


def test_memory_that_the_driver_refuses_loses_nothing(
    open_store, tiers, gpu, put, filled, contents, tmp_path
):
    store = open_store(tiers=tiers)
    papers = store.create_collection(CollectionSpec("papers", DIM, tier="gpu"))
    put(papers, filled("a", 1, rows=60))
    before, info = contents(papers), papers.info()
    gpu.memory.exhausted = True
    with pytest.raises(OutOfSpace, match="gpu_budget_bytes"):
        put(papers, filled("b", 2, rows=60))
    assert contents(papers) == before and papers.info() == info
    assert [p.stat().st_size for p in (tmp_path / "data/segments").iterdir()] == [60 * ROW_BYTES]
    gpu.memory.exhausted = False
    put(papers, filled("b", 2, rows=60))
    assert papers.get("b").vectors[0, 0] == 2


def test_the_tier_is_kept_and_chosen_anew_on_opening(open_store, tiers, gpu, put, filled, contents):
    store = open_store(tiers=tiers)
    for tier in ("auto", "gpu", "host"):
        put(store.create_collection(CollectionSpec(tier, DIM, tier=tier)), filled("a", 1, rows=60))
    assert [c.info().tier for c in store.collections()] == ["gpu", "gpu", "host"]
    expected = [contents(c) for c in store.collections()]
    store.close()
    small = Tier("gpu", FakeDevice(1 << 20), Budget(100 * ROW_BYTES, "gpu_budget_bytes"))
    store = open_store(tiers={"gpu": small, "host": host_tier(1 << 20)}, tier="host")
    assert [c.info().tier for c in store.collections()] == ["host", "gpu", "host"]
    assert [contents(c) for c in store.collections()] == expected
    store.close()
    store = open_store()  # without a GPU
    assert [c.info().tier for c in store.collections()] == ["host", "host", "host"]
    assert [contents(c) for c in store.collections()] == expected


def test_a_tier_that_is_none_is_refused():
    with pytest.raises(InvalidInput, match="must be one of auto, gpu, host"):
        CollectionSpec("papers", DIM, tier="disk")


def test_a_catalog_of_version_1_is_brought_up_to_date(open_store, put, filled, contents, tmp_path):
    store = open_store()
    put(store.create_collection(CollectionSpec("papers", DIM)), filled("a", 1))
    expected = contents(store.collection("papers"))
    store.close()
    with sqlite3.connect(tmp_path / "data" / "catalog.sqlite") as db:
        db.execute("ALTER TABLE collections DROP COLUMN tier")
        db.execute("PRAGMA user_version = 1")
    db.close()
    papers = open_store().collection("papers")
    assert contents(papers) == expected and papers.spec.tier == "auto"


def test_collections_of_one_kind_share_one_tensor(store, put, filled):
    one, two = (store.create_collection(CollectionSpec(name, DIM)) for name in ("one", "two"))
    other = store.create_collection(CollectionSpec("other", 2 * DIM))
    put(one, *(filled(f"d{n}", n, rows=40) for n in range(9)))
    put(two, filled("a", 1))
    other.commit(other.prepare([]))
    first, second = one.snapshot().parts[0], two.snapshot().parts[0]
    assert first.tokens is second.tokens and first.tokens.shape[1] == DIM


def test_extents_come_back_and_are_joined():
    extents = Extents(HostMemory(1 << 16), "host_budget_bytes")
    rng = np.random.default_rng(3)
    held = []
    for _ in range(2000):
        align = int(rng.choice([32, 96, 192]))
        least = align * int(rng.integers(1, 8))
        try:
            held.append(extents.take(least, 2 * least, align))
        except OutOfSpace:
            held.pop(int(rng.integers(len(held))))
            continue
        extent = held[-1]
        assert extent.begin % align == 0 and least <= extent.end - extent.begin <= 2 * least
        spans = sorted((e.begin, e.end) for e in held)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert extents.used_bytes == sum(end - begin for begin, end in spans)
    del extent
    held.clear()
    assert extents.used_bytes == 0 and extents._holes == [(0, 1 << 16)]


@pytest.mark.parametrize(("budget", "store_bytes"), [(0, 70), (50, 50), (70, 70)])
def test_the_plan_leaves_room_for_the_others(budget, store_bytes):
    plan = plan_gpu(total_bytes=100, free_bytes=90, budget_bytes=budget, workspace_bytes=10, encoder_bytes=5)
    assert (plan.store_bytes, plan.headroom_bytes) == (store_bytes, 5)


def test_a_budget_past_the_free_memory_names_the_setting():
    with pytest.raises(OutOfSpace, match="set it to 70 or less") as caught:
        plan_gpu(total_bytes=100, free_bytes=90, budget_bytes=71, workspace_bytes=10, encoder_bytes=5)
    assert caught.value.param == "gpu_budget_bytes"
