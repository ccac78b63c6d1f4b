"""Documents in and out of a collection: what comes back is what went in, in the order it went in."""

import numpy as np
import pytest
import torch

from maxsim_serve.errors import Conflict, Draining, InvalidInput, NotFound
from maxsim_serve.store import MAX_ID_BYTES, CollectionSpec, NewDocument

DIM = 16
TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
AWKWARD_IDS = [
    "a",
    " ",
    "a/b/../c?d=e&f#g",
    "..",
    "emoji 🦊👩‍👩‍👧",
    "nul\0inside",
    "\0",
    "quote'\"; DROP TABLE documents",
    "\u00e9",  # composed
    "e\u0301",  # decomposed: another id
    "\n\t\r",
    "x" * MAX_ID_BYTES,
    "🦊" * (MAX_ID_BYTES // 4),
]


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("rows", [1, 17, 63, 64, 65, 111])
def test_vectors_come_back_as_stored(open_store, put, dtype, rows):
    store = open_store()
    docs = store.create_collection(CollectionSpec("docs", 48, dtype))
    vectors = np.random.default_rng(rows).standard_normal((rows, 48), dtype=np.float32)
    put(
        docs,
        NewDocument("before", vectors[:1]),
        NewDocument("it", vectors),
        NewDocument("after", vectors[-1:]),
    )
    expected = torch.from_numpy(vectors).to(TORCH[dtype]).float().numpy()
    np.testing.assert_array_equal(docs.get("it").vectors, expected)
    store.close()
    np.testing.assert_array_equal(open_store().collection("docs").get("it").vectors, expected)


def test_ids_round_trip_exactly(open_store, put, filled):
    store = open_store()
    papers = store.create_collection(CollectionSpec("papers", DIM))
    put(papers, *(filled(id, n) for n, id in enumerate(AWKWARD_IDS)))
    for _ in range(2):
        assert list(papers.snapshot().ids) == AWKWARD_IDS
        assert [papers.get(id).vectors[0, 0] for id in AWKWARD_IDS] == list(range(len(AWKWARD_IDS)))
        assert set(papers.describe(AWKWARD_IDS)) == set(AWKWARD_IDS)
        store.close()
        store = open_store()
        papers = store.collection("papers")
    assert papers.delete(AWKWARD_IDS).deleted == AWKWARD_IDS
    assert papers.info().documents == 0


def test_text_and_payload_are_kept_verbatim(papers, put):
    payload = b'{"b": 1,  "a": [1.0, "\\u00e9"], "big": 12345678901234567890}'
    vectors = np.ones((2, DIM), np.float32)
    put(papers, NewDocument("both", vectors, "text\0with 🦊", payload), NewDocument("none", vectors))
    both = papers.get("both")
    assert (both.text, both.payload) == ("text\0with 🦊", payload)
    described = papers.describe(["none", "absent", "both"])
    assert set(described) == {"none", "both"}
    assert (described["none"].text, described["none"].payload) == (None, None)
    assert (described["both"].text, described["both"].payload) == (both.text, payload)


def test_an_update_replaces_everything_and_keeps_its_place(papers, put, filled):
    first = put(papers, filled("a", 1, text="old"), filled("b", 2), filled("c", 3))
    second = put(papers, filled("a", 9, rows=7), filled("d", 4))
    assert first == [1, 1, 1] and second == [2, 2]
    assert list(papers.snapshot().ids) == ["a", "b", "c", "d"]
    a = papers.get("a")
    assert (a.text, a.generation, a.vectors.shape) == (None, 2, (7, DIM))
    assert (a.vectors == 9).all()
    info = papers.info()
    assert (info.documents, info.tokens, info.generation) == (4, 5 + 5 + 7 + 5, 2)
    assert (info.bytes, info.dead_bytes) == (27 * DIM * 2, 5 * DIM * 2)


def test_a_deleted_document_that_returns_goes_to_the_end(papers, put, filled):
    put(papers, filled("a", 1), filled("b", 2), filled("c", 3))
    deleted = papers.delete(["b", "absent", "b", "a"])
    assert (deleted.deleted, deleted.missing) == (["b", "a"], ["absent"])
    put(papers, filled("a", 4))
    assert list(papers.snapshot().ids) == ["c", "a"]
    with pytest.raises(NotFound, match="'b' is not in collection 'papers'"):
        papers.get("b")


def test_a_restart_changes_nothing(open_store, put, filled, contents):
    store = open_store()
    rng = np.random.default_rng(3)
    papers = store.create_collection(CollectionSpec("papers", DIM))
    other = store.create_collection(CollectionSpec("other.v2", DIM, "bfloat16"))
    for n in range(120):
        id = f"doc-{rng.integers(40)}"
        if rng.random() < 0.2:
            papers.delete([id])
        else:
            put(papers, filled(id, n, rows=int(rng.integers(1, 30)), text=f"text {n}"))
            put(other, filled(id, -n))
    before = [(list(contents(c).items()), c.info()) for c in store.collections()]
    store.close()
    again = open_store()
    assert [(list(contents(c).items()), c.info()) for c in again.collections()] == before


def test_a_document_longer_than_a_segment_gets_its_own(papers, put, filled):
    put(papers, filled("small", 1), filled("huge", 2, rows=1000), filled("next", 3))
    assert papers.get("huge").vectors.shape == (1000, DIM)
    assert papers.info().segments == 3
    (part,) = papers.snapshot().parts  # one table of rows, however many segments
    assert part.lengths.tolist() == [5, 1000, 5]


def test_locate_finds_one_part_over_all_segments_and_keeps_positions(papers, put, filled):
    put(papers, *(filled(f"d{n}", n, rows=n % 9 + 1) for n in range(63)))
    asked = ["d5", "absent", "d62", "d5", "", "d0", "\ud800", "d33"]
    located = papers.locate(asked)
    assert located.missing.tolist() == [1, 4, 6]
    seen = {}
    for part in located.parts:
        assert part.starts.dtype == part.lengths.dtype == part.positions.dtype == np.int64
        assert part.starts.flags.c_contiguous and part.lengths.flags.c_contiguous
        for start, length, position in zip(part.starts, part.lengths, part.positions, strict=True):
            seen[int(position)] = part.tokens[start : start + length]
    assert sorted(seen) == [0, 2, 3, 5, 7]
    for position, rows in seen.items():
        number = int(asked[position][1:])
        assert len(rows) == number % 9 + 1 and (rows == number).all()
    assert len(located.parts) == 1 and papers.info().segments > 1


@pytest.mark.parametrize("ids", [[], ["absent"]], ids=["no ids", "an unknown id"])
def test_locate_of_nothing(papers, ids):
    located = papers.locate(ids)
    assert located.parts == [] and located.missing.tolist() == list(range(len(ids)))
    assert papers.snapshot().ids == [] and papers.snapshot().parts == []


def test_a_snapshot_is_kept_until_something_changes(papers, put, filled):
    put(papers, filled("a", 1))
    first = papers.snapshot()
    assert papers.snapshot() is first
    put(papers, filled("a", 2))
    assert papers.snapshot() is not first
    assert (first.parts[0].tokens[:5] == 1).all()


def test_many_deletions_do_not_disturb_the_order(papers, put, filled):
    put(papers, *(filled(f"d{n}", n % 7, rows=1) for n in range(3000)))
    papers.delete([f"d{n}" for n in range(3000) if n % 10])
    put(papers, filled("last", 1))
    expected = [f"d{n}" for n in range(0, 3000, 10)] + ["last"]
    assert list(papers.snapshot().ids) == expected
    assert all(papers.get(f"d{n}").vectors[0, 0] == n % 7 for n in range(0, 3000, 10))


def test_an_empty_commit_is_nothing(papers):
    assert papers.commit(papers.prepare([])) == []
    assert papers.info().generation == 0


def test_collections_are_made_once_and_dropped_whole(open_store, store, put, filled):
    spec = CollectionSpec("papers", DIM)
    papers = store.create_collection(spec)
    assert store.create_collection(spec) is papers
    with pytest.raises(Conflict, match=r"exists with dim 16, dtype float16.*not dim 24"):
        store.create_collection(CollectionSpec("papers", 24))
    put(papers, filled("a", 1))
    held = papers.snapshot()
    store.drop_collection("papers")
    assert store.resident_bytes == 0 and store.collections() == []
    assert (held.parts[0].tokens[:5] == 1).all()
    for refused in (
        lambda: put(papers, filled("b", 1)),
        lambda: papers.delete(["a"]),
        lambda: papers.get("a"),
    ):
        with pytest.raises(NotFound):
            refused()
    with pytest.raises(NotFound, match="there are: none"):
        store.collection("papers")
    store.create_collection(CollectionSpec("papers", 24))
    store.close()
    assert open_store().collection("papers").info().documents == 0


def test_what_was_prepared_for_another_collection_is_refused(store, papers, filled):
    other = store.create_collection(CollectionSpec("other", DIM))
    with pytest.raises(InvalidInput, match="prepared for"):
        other.commit(papers.prepare([filled("a", 1)]))


def test_a_closed_store_refuses_writes(store, papers, filled):
    prepared = papers.prepare([filled("a", 1)])
    store.close()
    store.close()
    with pytest.raises(Draining, match="closed"):
        papers.commit(prepared)
    with pytest.raises(Draining, match="closed"):
        store.create_collection(CollectionSpec("more", DIM))


@pytest.mark.parametrize("name", ["", ".", ".hidden", "a/b", "a b", "é", "x" * 65, "a\n"])
def test_bad_names_are_refused(name):
    with pytest.raises(InvalidInput, match="collection name") as caught:
        CollectionSpec(name, DIM)
    assert caught.value.param == "name"


@pytest.mark.parametrize("dim", [0, -8, 8, 15, 17, 1025, 1032])
def test_bad_widths_are_refused(dim):
    with pytest.raises(InvalidInput, match="multiple of 8 from 16 to 1024") as caught:
        CollectionSpec("papers", dim)
    assert caught.value.param == "dim"


def test_an_unknown_dtype_is_refused():
    with pytest.raises(InvalidInput, match="float16, bfloat16, float32"):
        CollectionSpec("papers", DIM, "int8")


def test_gauges_say_what_is_stored(store, metrics, papers, put, filled):
    def gauge(name):
        return metrics.registry.get_sample_value(name, {"collection": "papers", "tier": "host"})

    def mutations(op, outcome):
        return metrics.registry.get_sample_value(
            "maxsim_store_mutations_total", {"op": op, "outcome": outcome}
        )

    put(papers, filled("a", 1), filled("b", 2))
    put(papers, filled("a", 3, rows=2))
    papers.delete(["b", "absent"])
    assert gauge("maxsim_store_documents") == 1
    assert gauge("maxsim_store_tokens") == 2
    assert gauge("maxsim_store_bytes") == 12 * DIM * 2 == store.resident_bytes
    assert gauge("maxsim_store_dead_bytes") == 10 * DIM * 2
    assert mutations("upsert", "ok") == 3
    store.drop_collection("papers")
    assert gauge("maxsim_store_documents") is None
    with pytest.raises(NotFound):
        papers.delete(["a"])
    assert mutations("delete", "error") == 1
