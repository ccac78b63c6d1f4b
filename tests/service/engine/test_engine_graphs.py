"""Which kinds of requests get a graph, and which lose it; the fake is the capture, at the driver's edge."""

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

    def __init__(self, key):
        self.key = key

    def launch(self, request, started):
        return self.key


@pytest.fixture
def graphs(monkeypatch):
    graphs = Graphs(torch.device("cpu"), None, slots=2)
    graphs.captures = []

    def capture(key, request):
        graphs.captures.append(key)
        return Captured(key)

    monkeypatch.setattr(graphs, "_capture", capture)
    return graphs


def ask(graphs, rows, count=100, length=30, parts=1, slot=0):
    """The kind that a request was replayed as, None if it is to be launched plainly."""
    tokens = SimpleNamespace(is_cuda=True, dtype=torch.float16, shape=(1000, 128), data_ptr=lambda: 4096)
    numbers = np.arange(count)
    part = Part(tokens, numbers, np.full(count, length), numbers)
    resolved = Resolved([part] * parts, count * parts, NOTHING, count * length)
    return graphs.launch(Request(np.zeros((rows, 128), np.float16), resolved, 10), lambda q, d: d, slot)


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
    assert [ask(graphs, 32, **other) for _ in range(3)] == [None] * 3


def test_kinds_that_take_turns_are_captured_once(graphs):
    for _ in range(5):
        for rows in range(100, 180):
            ask(graphs, rows)
    assert len(graphs.captures) == 2 * 64
    assert ask(graphs, 100) is not None and ask(graphs, 179) is None


def test_a_kind_that_comes_no_more_makes_room(graphs):
    for _ in range(2):
        for rows in range(100, 164):
            ask(graphs, rows)
    for _ in range(1000):
        for rows in (100, 101):
            ask(graphs, rows)
    assert ask(graphs, 200) is None and ask(graphs, 200) is not None  # in the place of 102
    assert ask(graphs, 100) is not None and ask(graphs, 102) is not None  # 102 in that of 103
    assert len(graphs.captures) == 2 * (64 + 2)


def test_without_memory_a_request_is_launched_plainly_and_tried_again(graphs, monkeypatch):
    capture = graphs._capture

    def full(key, request):
        raise torch.OutOfMemoryError("CUDA out of memory")

    ask(graphs, 32)
    monkeypatch.setattr(graphs, "_capture", full)
    assert ask(graphs, 32) is None
    monkeypatch.setattr(graphs, "_capture", capture)
    assert ask(graphs, 32) is not None
