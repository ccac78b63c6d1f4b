"""How contenders are checked, timed and reported, with a clock that needs no GPU."""

import json
import sys
from contextlib import nullcontext
from types import ModuleType

import pytest
import torch

from maxsim import Ragged
from maxsim.bench import contest, main, rival_flash, rival_lik
from maxsim.bench.ceilings import Ceilings
from maxsim.bench.gpu_timing import Uncapturable
from maxsim.bench.rivals import MOST_ELEMENTS, Offers, Rival
from maxsim.bench.work import Work, packed, unit

CEILINGS = Ceilings(
    copy_tb_per_s=4.0,
    read_tb_per_s=2.0,
    matmul_tflop_per_s={"float16": 500.0, "bfloat16": 500.0, "float32": 50.0},
    empty_kernel_us=2.0,
)


class Clock:
    """Takes a call's milliseconds from its attribute `ms`; ours, a bound method, takes one."""

    def cold_ms(self, call, runs=None):
        call()
        return getattr(call, "ms", 1.0)

    def host_us(self, call, device_ms):
        return 20.0

    def graph_ms(self, call):
        if getattr(call, "waits", False):
            raise Uncapturable("waits for the device")
        return 0.5, 0.25


class Contender:
    """Scores `work` right, after `ms`; `off` is added to each score, `error` is raised instead."""

    def __init__(self, work, ms, off=0.0, error=None, waits=False):
        self.work, self.ms, self.off, self.error, self.waits = work, ms, off, error, waits

    def __call__(self):
        if self.error is not None:
            raise self.error
        return self.work.score().flatten() + self.off


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(contest, "parallel_compile", nullcontext)


@pytest.fixture
def work(seeded):
    documents = packed(torch.tensor([17, 1, 63]), 24, torch.float16, seeded)
    return Work(unit((1, 7, 24), torch.float16, seeded), documents, "packed")


def rival(name, calls, refused=None):
    return Rival(name, "1.0", name, lambda work: Offers(calls, refused or {}))


def run(work, *rivals):
    row, wanted = contest.ours(Clock(), CEILINGS, "a case", work)
    contest.add_rivals(Clock(), row, list(rivals), work, wanted)
    return row


def test_the_fastest_right_function_stands_for_a_rival(work):
    calls = {
        "slow": Contender(work, 3.0),
        "fast": Contender(work, 2.0),
        "fastest but wrong": Contender(work, 0.1, off=1.0),
        "crashes": Contender(work, 0.1, error=RuntimeError("no such kernel\nand more")),
    }
    row = run(work, rival("peer", calls, {"other": "left out: too large"}))
    assert row["rivals"] == {"peer": 2.0}
    assert row["rival_functions"] == {"peer": "fast"}
    assert row["rival_trials_ms"] == {"peer": {"slow": 3.0, "fast": 2.0}}
    assert row["rival_graph_ms"] == {"peer": 0.5}
    errors = row["rival_errors"]["peer"]
    assert errors["other"] == "left out: too large"
    assert errors["crashes"] == "RuntimeError: no such kernel"
    assert errors["fastest but wrong"].startswith("WrongScores: scores are off by ")
    assert row["ratio_to_best_rival"] == 0.5
    json.dumps(row)


def test_a_rival_without_any_right_answer_has_no_time(work):
    row = run(work, rival("peer", {"wrong": Contender(work, 0.1, off=1.0)}))
    assert row["rivals"] == {}
    assert "ratio_to_best_rival" not in row
    assert list(row["rival_errors"]["peer"]) == ["wrong"]


def test_a_rival_that_cannot_take_the_inputs_is_reported(work):
    def offers(work):
        raise torch.OutOfMemoryError("too much padding")

    row = run(work, Rival("peer", "1.0", "peer", offers))
    assert row["rival_errors"] == {"peer": {"inputs": "OutOfMemoryError: too much padding"}}


def test_a_call_that_waits_has_no_graph_time(work):
    row = run(work, rival("peer", {"only": Contender(work, 2.0, waits=True)}))
    assert row["rival_graph_errors"] == {"peer": "Uncapturable: waits for the device"}
    assert row["graph_ms"] == 0.5


def test_a_lost_device_ends_the_run(work, monkeypatch):
    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    row, wanted = contest.ours(Clock(), CEILINGS, "a case", work)
    peer = rival("peer", {"crashes": Contender(work, 1.0, error=RuntimeError("illegal memory access"))})
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with pytest.raises(contest.DeviceLost, match="illegal memory access"):
        contest.add_rivals(Clock(), row, [peer], work, wanted)


def test_ours_is_held_to_the_definition(work, monkeypatch):
    right = work.score()
    monkeypatch.setattr(Work, "score", lambda self: right * (1 + 3e-4))
    with pytest.raises(contest.WrongScores, match=r"off by 3\.0e-04"):
        contest.ours(Clock(), CEILINGS, "a case", work)


def test_the_limit_is_the_larger_of_reading_and_computing(work):
    row = run(work)
    assert row["limit_ms"] == pytest.approx(work.bytes / 2e12 * 1e3)
    assert row["share_of_limit"] == pytest.approx(row["limit_ms"] / 1.0)
    assert CEILINGS.limit_ms(2 * 10**9, 10**12, "float16") == pytest.approx(2.0)
    assert CEILINGS.limit_ms(2 * 10**9, 10**12, "float32") == pytest.approx(20.0)


@pytest.mark.parametrize("rival", [rival_flash, rival_lik], ids=["flash", "lik"])
def test_rivals_are_spared_what_overflows_them(rival, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_maxsim", ModuleType("flash_maxsim"))
    documents = 2**24 + 1
    assert documents * 128 > MOST_ELEMENTS
    # One token each, and all of them the same: it takes no memory.
    tokens = torch.ones(1, 128, dtype=torch.float16).expand(documents, 128)
    query = torch.ones(1, 2, 128, dtype=torch.float16)
    found = rival.offers(Work(query, Ragged(tokens, torch.arange(documents + 1)), "packed"))
    assert not found.calls
    assert "2³¹ elements" in next(iter(found.refused.values()))


def test_without_a_gpu_it_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["forward", "--quick"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "maxsim bench forward: needs a CUDA GPU, and PyTorch sees none here\n"
