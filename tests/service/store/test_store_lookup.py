"""Many ids at once: the compiled look-up and the dict find the same, whatever was written before."""

import numpy as np
import pytest
import torch

from maxsim_serve.store import lookup, resident
from maxsim_serve.store.lookup import LENGTH, START, Lookup, slot_lines
from maxsim_serve.store.resident import ResidentIndex
from maxsim_serve.store.tier import host_tier

needs_compiled = pytest.mark.skipif(not lookup.compiled, reason="the look-up is not built")


@pytest.fixture(
    params=[pytest.param(True, id="compiled", marks=needs_compiled), pytest.param(False, id="dict")]
)
def index(request, monkeypatch):
    monkeypatch.setattr(resident, "compiled", request.param)
    index = ResidentIndex(host_tier(1 << 20).table(16, torch.float16))
    assert (index._lookup is not None) == request.param
    return index


def upsert(index, ids, segment=0, length=1):
    n = len(ids)
    numbers = np.arange(n)
    index.upsert(ids, np.full(n, segment), numbers, np.full(n, length), numbers, None)


def found(index, ids):
    """{position: (first row, length)}, and the positions that are missing."""
    located = index.locate(ids)
    places = {}
    for part in located.parts:
        rows = zip(part.starts.tolist(), part.lengths.tolist(), strict=True)
        places |= zip(part.positions.tolist(), rows, strict=True)
    assert located.tokens == sum(length for _, length in places.values())
    assert sorted([*places, *located.missing.tolist()]) == list(range(len(ids)))
    return places


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 5000], ids="n{}".format)
def test_every_document_is_found_in_any_order(index, count):
    ids = [f"{'é'[: i % 2]}{i}" for i in range(count)]
    upsert(index, ids[: count // 2], segment=0, length=2)
    upsert(index, ids[count // 2 :], segment=7, length=3)
    order = np.random.default_rng(count).permutation(count).tolist()
    asked = [ids[i] for i in order]
    half = count // 2
    assert found(index, asked) == {
        position: (i, 2) if i < half else (i - half, 3) for position, i in enumerate(order)
    }


def test_unknown_and_repeated_ids_keep_their_positions(index):
    upsert(index, ["a", "b"])
    assert found(index, ["b", "x", "a", "", "b"]) == {0: (1, 1), 2: (0, 1), 4: (1, 1)}
    assert found(index, ("x",)) == {}


def test_a_document_that_is_gone_is_missing_until_it_comes_again(index):
    upsert(index, ["a", "b"])
    index.remove(["a"])
    assert found(index, ["a", "b"]) == {1: (1, 1)}
    upsert(index, ["c", "a"], length=4)
    assert found(index, ["a", "b", "c"]) == {0: (1, 4), 1: (1, 1), 2: (0, 4)}


def test_an_update_and_a_move_are_seen(index):
    upsert(index, ["a", "b"])
    upsert(index, ["b"], length=5)
    index.move(["a"], np.array([7]), np.array([3]), None)
    assert found(index, ["a", "b"]) == {0: (3, 1), 1: (0, 5)}


def test_slots_that_were_squeezed_are_found_in_their_new_places(index):
    ids = [str(i) for i in range(4000)]
    upsert(index, ids)
    index.remove(ids[:3500])
    assert len(index._ids) < 4000
    assert found(index, ids) == {i: (i, 1) for i in range(3500, 4000)}


def test_ids_of_every_form_are_found_and_told_apart(index):
    lengths = [*range(1, 34), 63, 1024]
    ids = [letter * length for letter in ("a", "b", "é", "\u4e2d", "\U0001f600") for length in lengths]
    ids += ["", "a" * 30 + "b", "a" * 31 + "b", "a" * 32 + "b", "a\0", "a\0\0", "\0"]
    upsert(index, ids)
    assert sorted(found(index, ids)) == list(range(len(ids)))
    places = found(index, ids)
    assert len({start for start, _ in places.values()}) == len(ids)
    assert found(index, ["c", "a" * 34, "a" * 29 + "c", "aé", "a\0b", "\0\0"]) == {}


@pytest.mark.parametrize("length", [*range(1, 34)], ids="L{}".format)
def test_every_character_of_an_id_tells(index, length):
    id = "abcdefghijklmnopqrstuvwxyzABCDEFG"[:length]
    upsert(index, [id])
    others = [id[:i] + other + id[i + 1 :] for i in range(length) for other in "\0~é"]
    others += [id[:-1], id + "\0", *(id[:i] + id[i + 1 :] for i in range(length)), id + id[-1]]
    assert found(index, [id, *others]) == {0: (0, 1)}


def test_nothing_is_left_after_clear(index):
    upsert(index, ["a"])
    index.clear()
    assert found(index, ["a"]) == {}
    upsert(index, ["b"])
    assert found(index, ["a", "b"]) == {1: (0, 1)}


@needs_compiled
def test_ids_of_one_hash_are_told_apart():
    class Clash(str):
        def __hash__(self):
            return 2**40 + 2047  # the last bucket: the next is the first

    ids = [Clash(f"id-{i}") for i in range(70)]
    lines = slot_lines(70)
    lines[:] = np.arange(8 * 70).reshape(70, 8)
    one = Lookup()
    one.enter(ids, lines, 0)
    (starts, lengths), *counted = one.find([*reversed(ids), Clash("other")], ids, lines)
    np.testing.assert_array_equal(starts[:70], lines[::-1, START])
    np.testing.assert_array_equal(lengths[:70], lines[::-1, LENGTH])
    assert (starts[70], lengths[70]) == (0, 0)
    assert counted == [70, lines[:, LENGTH].sum(), lines[:, LENGTH].max()]


@needs_compiled
def test_what_is_no_id_is_an_error():
    one = Lookup()
    lines = slot_lines(1)
    one.enter(["1"], lines, 0)
    with pytest.raises(TypeError):
        one.find([["unhashable"]], ["1"], lines)
