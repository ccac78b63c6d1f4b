"""Many ids at once: the compiled look-up and the dict find the same, whatever was written before."""

import subprocess
import sys
import threading
import time
import uuid

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


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFG"
KINDS = {f"L{length}": (LETTERS * 4)[:length] for length in (*range(1, 50), 63, 64, 65, 100)}
KINDS |= {
    "UUID": "0123a5f7-89ab-4cde-8f01-23456789abcd",
    "nearly a UUID": "0123a5f7-89ab-4cde-8f01-23456789abcg",
    "UUID in capitals": "0123A5F7-89AB-4CDE-8F01-23456789ABCD",
    "other characters": "Größe, 15 µm and more than that many",
    "wide ones": "\u4e2d\u6587" * 12,
    "the widest": "\U0001f600" * 9,
}


@pytest.mark.parametrize("id", KINDS.values(), ids=KINDS)
def test_every_character_of_an_id_tells(index, id):
    length = len(id)
    upsert(index, [id])
    others = [id[:i] + other + id[i + 1 :] for i in range(length) for other in "\0~é0afg-A"]
    others = [other for other in others if other != id]
    others += [id[:-1], id + "\0", *(id[:i] + id[i + 1 :] for i in range(length)), id + id[-1]]
    assert found(index, [id, *others]) == {0: (0, 1)}


def test_uuids_are_found_and_told_apart(index):
    rng = np.random.default_rng(4)
    ids = [str(uuid.UUID(bytes=rng.bytes(16))) for _ in range(3000)]
    every = ids[:2000] + [id.upper() for id in ids[:1000]]
    upsert(index, every)
    assert found(index, every[::-1]) == {2999 - number: (number, 1) for number in range(3000)}
    assert found(index, [*ids[2000:], *(id.replace("-", "") for id in ids)]) == {}


def test_a_string_of_another_class_is_the_id_that_it_equals(index):
    ids = ["short", "x" * 40, "é", str(uuid.UUID(int=5))]
    upsert(index, ids)
    assert found(index, [np.str_(id) for id in ids]) == {position: (position, 1) for position in range(4)}
    assert found(index, [5, None, b"short", "short"]) == {3: (0, 1)}


def test_nothing_is_left_after_clear(index):
    upsert(index, ["a"])
    index.clear()
    assert found(index, ["a"]) == {}
    upsert(index, ["b"])
    assert found(index, ["a", "b"]) == {1: (0, 1)}


# As compiled: of hashes that Python's own secret is in.
SECRET = [hash(f"maxsim {i}") & (2**64 - 1) | 1 for i in range(4)]
LAST_BUCKET = 2047  # the next is the first


def same_hash(number):
    """An id that has no name, and the hash of the last bucket."""
    front = f"{number:016d}".encode()
    product = (int.from_bytes(front[:8], "little") ^ SECRET[0]) * (
        int.from_bytes(front[8:], "little") ^ SECRET[2]
    )
    hash_of_front = (product ^ product >> 64) & (2**64 - 1)
    back = (2**40 + LAST_BUCKET ^ hash_of_front).to_bytes(8, "little") + (SECRET[2] ^ 1).to_bytes(8, "little")
    return (front + back).decode("latin-1")


def same_fingerprint(number):
    """An id both of whose hashes are 0."""
    back = SECRET[3].to_bytes(8, "little") + SECRET[2].to_bytes(8, "little")
    return f"{number:032d}" + back.decode("latin-1")


@needs_compiled
@pytest.mark.parametrize("alike", [same_hash, same_fingerprint])
def test_ids_of_one_hash_are_told_apart(alike):
    ids = [alike(number) for number in range(70)]
    lines = slot_lines(70)
    lines[:] = np.arange(8 * 70).reshape(70, 8)
    one = Lookup()
    one.enter(ids, lines, 0)
    names = lines.view(np.uint64)[:, :4]
    if alike is same_hash:
        assert set(names[:, 0].tolist()) == {2**40 + LAST_BUCKET} and len(set(names[:, 1].tolist())) == 70
        assert one._buckets[LAST_BUCKET] >= 0 and (one._buckets[:69] >= 0).all()
    else:
        assert not names[:, :2].any() and len(set(names[:, 2].tolist())) == 1
    (starts, lengths), *counted = one.find([*reversed(ids), alike(70)], ids, lines)
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


def everything(located):
    """What a look-up found, as plain values."""
    return [
        (
            one.tokens,
            one.missing.tolist(),
            [
                [part.starts.tolist(), part.lengths.tolist(), part.positions.tolist(), part.most_rows()]
                for part in one.parts
            ],
        )
        for one in located
    ]


@pytest.mark.parametrize("helpers", [0, 3], ids="helpers{}".format)
def test_many_lists_together_are_found_as_each_by_itself(index, monkeypatch, helpers):
    monkeypatch.setattr(lookup, "helpers", lambda: helpers)
    rng = np.random.default_rng(helpers)
    ids = [str(i) if i % 50 else f"{i} is a number with too long a name: {'é'[: i % 4]}" for i in range(6000)]
    for first in range(0, 6000, 1000):
        upsert(index, ids[first : first + 1000], segment=first, length=1 + first)
    index.remove(ids[100:200])
    plain = [id for id in ids if len(id) < 32]

    def draw(count, of):
        return [of[i] for i in rng.integers(0, len(of), count).tolist()]

    lists = [
        [],
        ["unknown"],
        ["", "é", "x" * 40],
        tuple(draw(20, ids)),
        ["7", "7", "unknown", "7"],
        draw(20_000, ids),
    ]
    lists += [draw(count, of) for count in (1, 11, 12, 13, 63, 64, 65, 1000) for of in (ids, plain)]
    for some in (lists, lists[:5], lists[:1], lists[:0], lists[::-1]):
        assert everything(index.locate_all(some)) == everything(map(index.locate, some))


@needs_compiled
def test_what_is_no_id_is_an_error_among_many_lists_too(index, monkeypatch):
    monkeypatch.setattr(lookup, "helpers", lambda: 3)
    upsert(index, ["a"])
    with pytest.raises(TypeError):
        index.locate_all([["a"] * 5000, [["unhashable"]], ["a"]])
    assert found(index, ["a"]) == {0: (0, 1)}


@pytest.mark.parametrize("helpers", [0, 3], ids="helpers{}".format)
def test_every_list_of_a_look_up_is_of_one_moment(index, monkeypatch, helpers):
    """A writer updates all documents, puts others before and behind them, and takes those away again."""
    monkeypatch.setattr(lookup, "helpers", lambda: helpers)
    ids = [f"d{i}" for i in range(1500)]
    others = [
        [f"{kind}{i}" for i in range(3000)] for kind in ("short ", "of more than thirty-one characters, ")
    ]
    upsert(index, ids, length=1)
    ended = threading.Event()

    def write():
        length = 1
        while not ended.is_set():
            length += 1
            upsert(index, ids, length=length)
            upsert(index, others[length % 2], length=length)
            index.remove(others[length % 2])

    writer = threading.Thread(target=write)
    writer.start()
    moments = set()
    try:
        until = time.perf_counter() + 20
        while len(moments) < 30:
            assert time.perf_counter() < until
            located = index.locate_all([ids, ids[::-1], *([id] for id in ids[:50]), ids[700:], ids, ids])
            (length,) = {length for one in located for part in one.parts for length in part.lengths.tolist()}
            assert [one.tokens for one in located[:2]] == [1500 * length] * 2
            moments.add(length)
    finally:
        ended.set()
        writer.join()


_FORKED = """
import os, sys
import numpy as np, torch
from maxsim_serve.store import lookup
from maxsim_serve.store.resident import ResidentIndex
from maxsim_serve.store.tier import host_tier

lookup.helpers = lambda: 3
index = ResidentIndex(host_tier(1 << 20).table(16, torch.float16))
ids, numbers = [str(i) for i in range(1000)], np.arange(1000)
index.upsert(ids, numbers, numbers, numbers + 1, numbers, None)

def threads():
    return len(os.listdir("/proc/self/task"))

def look_up():
    before = threads()
    assert [one.tokens for one in index.locate_all([ids] * 10)] == [500_500] * 10
    return threads() - before

assert look_up() == 3 and look_up() == 0
child = os.fork()
if not child:
    os._exit(not (threads() == 1 and look_up() == 3 and look_up() == 0))
assert os.waitpid(child, 0)[1] == 0
assert look_up() == 0
"""


@needs_compiled
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_helpers_are_started_once_and_anew_in_a_child():
    pytest.importorskip("maxsim._crew", reason="the helpers are not built")
    subprocess.run([sys.executable, "-c", _FORKED], check=True, timeout=60)
