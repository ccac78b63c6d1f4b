"""Which kinds of requests get a graph, and which lose it; the fake is the capture, at the driver's edge."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maxsim_serve.engine.candidates import Resolved
from maxsim_serve.engine.graphs import Graphs
from maxsim_serve.engine.scorer import Request
from maxsim_serve.store import Part

NOTHING = np.empty(0, np.int64)


class Captured:
    device_bytes = 10

    def __init__(self, kind, tokens):
        self.kind, self.tokens = kind, tokens

    def launch(self, request, started):
        return self.kind


@pytest.fixture
def graphs(monkeypatch):
    graphs = Graphs(torch.device("cpu"), None, 2, None)
    graphs.captures = []

    def capture(kind, slot, tokens):
        graphs.captures.append(kind)
        return Captured(kind, tokens)

    monkeypatch.setattr(graphs, "_capture", capture)
    return graphs


@functools.cache
def store(dim):
    return SimpleNamespace(is_cuda=True, dtype=torch.float16, shape=(1000, dim))


def ask(graphs, rows=32, count=100, length=30, parts=1, slot=0, dim=128):
    """The kind that a request was replayed as, None if it is to be launched plainly."""
    tokens = store(dim)
    numbers = np.arange(count)
    part = Part(tokens, numbers, np.full(count, length), numbers)
    resolved = Resolved([part] * parts, count * parts, NOTHING, count * length)
    return graphs.launch(Request(np.zeros((rows, dim), np.float16), resolved, 10), lambda q, d: d, slot)


def test_the_second_of_a_kind_is_captured_for_every_slot(graphs):
    assert ask(graphs, 32) is None and graphs.captures == []
    kind = ask(graphs, 32)
    assert kind == ask(graphs, 7, count=1, slot=1) == ask(graphs, 32, count=128, length=255)
    assert graphs.captures == [kind, kind] and graphs.device_bytes == 20
    assert (kind.rows, kind.pairs, kind.longest) == (32, 128, 255)


@pytest.mark.parametrize(
    "other", [{"rows": 33}, {"rows": 65}, {"count": 129}, {"length": 256}, {"count": 4096}], ids=str
)
def test_kinds_that_a_graph_does_not_take_have_their_own(graphs, other):
    for _ in range(2):
        ask(graphs, 32)
    assert ask(graphs, **({"rows": 32} | other)) is None
    assert ask(graphs, **({"rows": 32} | other)) != ask(graphs, 32)


@pytest.mark.parametrize("other", [{"count": 4097}, {"parts": 2}], ids=str)
def test_what_no_graph_is_for_is_launched_plainly(graphs, other):
    assert [ask(graphs, **other) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("rows, most", [(65, 128), (128, 128), (129, 256), (1000, 1024), (1024, 1024)])
def test_long_queries_share_kinds(graphs, rows, most):
    ask(graphs, rows)
    assert ask(graphs, most).rows == ask(graphs, rows).rows == most
    assert len(graphs.captures) == 2


def test_kinds_that_take_turns_are_captured_once(graphs):
    for _ in range(200):
        for kind in range(80):
            ask(graphs, dim=16 + 8 * kind)
    assert len(graphs.captures) == 2 * 64
    assert ask(graphs, dim=16) is not None and ask(graphs, dim=16 + 8 * 79) is None


def test_kinds_that_nobody_asks_for_twice_in_a_row_are_captured_rarely(graphs):
    kinds = np.random.default_rng(5).integers(0, 120, 20_000).tolist()
    for kind in kinds:
        ask(graphs, dim=16 + 8 * kind)
    assert len(graphs.captures) < 2 * 70


def test_a_kind_that_is_asked_for_more_than_another_takes_its_place(graphs):
    for _ in range(3):
        for kind in range(64):
            ask(graphs, dim=16 + 8 * kind)
    for _ in range(10):
        ask(graphs, dim=16)
    captured = len(graphs.captures)
    asked = [ask(graphs, rows=1000) is not None for _ in range(40)]
    assert 10 < asked.index(True) < 30 and all(asked[asked.index(True) :])
    assert len(graphs.captures) == captured + 2
    assert ask(graphs, dim=16) is not None


def test_what_was_asked_for_long_ago_does_not_count_for_ever(graphs):
    for _ in range(1000):
        for kind in range(64):
            ask(graphs, dim=16 + 8 * kind)
    asked = [ask(graphs, rows=1000) is not None for _ in range(200)]
    assert asked[-1]


def test_without_memory_a_request_is_launched_plainly_and_tried_again(graphs, monkeypatch):
    capture = graphs._capture

    def full(kind, slot, tokens):
        raise torch.OutOfMemoryError("CUDA out of memory")

    ask(graphs, 32)
    monkeypatch.setattr(graphs, "_capture", full)
    assert ask(graphs, 32) is None
    monkeypatch.setattr(graphs, "_capture", capture)
    assert ask(graphs, 32) is not None


def test_stages_end_with_the_last_of_their_programs():
    carry = pytest.importorskip("maxsim_serve.engine.carry", reason="needs Triton")
    clocks = carry.Clocks(words=2049, row_words=1, pairs=1025)  # three programs and one fetch, two deliver
    readings = [1000, 9000, 1100, 1400, 1200, 1300, 9010, 9020]
    assert clocks.readings == len(readings)
    assert clocks.stages_s(readings) == pytest.approx({"upload": 4e-7, "kernel": 7.6e-6, "download": 2e-8})
