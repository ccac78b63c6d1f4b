"""The short form of `loadtest/torture.py`, and that it can fail."""

import subprocess
import sys
from pathlib import Path

import pytest

LOADTEST = Path(__file__).parents[3] / "loadtest"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_rounds_of_kill_9_lose_nothing():
    command = [sys.executable, LOADTEST / "torture.py", "--rounds", "3", "--seed", "11"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count(": ok\n") == 3
    assert "3 rounds, 0 wrong" in run.stdout and "nothing lost, nothing back, nothing torn" in run.stdout


@pytest.fixture
def expectation(monkeypatch):
    """After two acknowledged inserts and a deletion, with one batch under way."""
    monkeypatch.syspath_prepend(str(LOADTEST))
    import torture

    expected = torture.Expectation()
    expected.record(0, "put", {"a": 1, "b": 1, "c": 1, "gone": 1})
    expected.record(0, "done", None)
    expected.record(0, "delete", ["gone"])
    expected.record(0, "done", None)
    expected.record(1, "put", {"c": 2, "d": 2})
    return expected


def observed(*versions):
    from torture import Observation
    from torture_load import digest, make

    documents = {id: make(id, version) for id, version in versions}
    digests = {
        id: digest(d.vectors, d.text, {"version": version, "id": id})
        for (id, version), d in zip(versions, documents.values(), strict=True)
    }
    return Observation(digests, len(digests), 1)


@pytest.mark.parametrize("in_flight", ["absent", "whole"])
def test_what_is_right_passes(expectation, in_flight):
    late = [("c", 1)] if in_flight == "absent" else [("c", 2), ("d", 2)]
    wrong, outcomes = expectation.check(observed(("a", 1), ("b", 1), *late))
    assert wrong == [] and outcomes == {in_flight: 1}


@pytest.mark.parametrize(
    ("versions", "verdict"),
    [
        ([("a", 1), ("c", 1)], "LOST: b"),
        ([("a", 1), ("b", 1), ("c", 1), ("gone", 1)], "BACK: gone"),
        ([("a", 1), ("b", 7), ("c", 1)], "WRONG: b"),
        ([("a", 1), ("b", 1), ("c", 2)], "TORN"),
        ([("a", 1), ("b", 1), ("c", 1), ("nobody's", 1)], "BACK: nobody's"),
    ],
)
def test_what_is_wrong_is_found(expectation, versions, verdict):
    wrong, _outcomes = expectation.check(observed(*versions))
    assert len(wrong) == 1 and wrong[0].startswith(verdict)
