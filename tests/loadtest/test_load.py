"""The load generator against a stand-in with one known fault, the search for a knee, the soak's verdict."""

import math
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from clients import Clients, summary
from knee import Steps, find_knee
from load_plot import svg
from load_report import as_markdown
from openloop import Load
from scenarios import FILE, CollectionPlan, Scenario, is_upsert, messages, read
from soak import drifts, growths, soak
from target import Target, filled

from maxsim_serve.cli.local import LocalService, free_port

SMALL = CollectionPlan(documents=300, dim=32, mean_tokens=20)
SCENARIO = Scenario("small", 20, 8, "msgpack", "host", 10, 50.0, 0.0, 5)
RATE_PER_S = 100.0


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with Clients(1) as clients:
        yield clients


@contextmanager
def stand_in(fault: str) -> Iterator[Target]:
    port = free_port()
    process = subprocess.Popen([sys.executable, Path(__file__).with_name("stand_in.py"), str(port), fault])
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.02)
        yield Target(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.kill()
        process.wait()


def test_every_request_leaves_at_its_time_and_a_stall_shows_in_all_that_were_due_in_it(clients):
    with stand_in("stall") as target:
        load = Load(target.port, SCENARIO, SMALL, RATE_PER_S, 3.0)
        outcome = clients.offer(load)
    assert outcome.due.sum() == 300
    assert (outcome.status == 200).all()
    np.testing.assert_allclose(np.diff(outcome.intended_s), 1 / RATE_PER_S, rtol=1e-6)
    latency_s = outcome.done_s - outcome.intended_s
    # Half a second at 100 requests a second: some 50 were due in it, and waited for what was left of it.
    assert 35 <= (latency_s > 0.1).sum() <= 60
    assert 0.45 < latency_s.max() < 1.0
    assert np.median(latency_s) < 0.05
    assert summary(load, outcome, 0.0)["send_lag_p99_ms"] < 50


def test_sending_stops_when_too_much_is_unanswered(clients):
    with stand_in("stall") as target:
        outcome = clients.offer(Load(target.port, SCENARIO, SMALL, RATE_PER_S, 3.0, unanswered_max=10))
    assert outcome.saturated
    assert outcome.due.sum() < 150


def test_clients_that_take_turns_send_each_request_once():
    with Clients(2) as two, stand_in("none") as target:
        outcome = two.offer(Load(target.port, SCENARIO, SMALL, RATE_PER_S, 1.0))
    assert len(outcome.status) == 100
    np.testing.assert_allclose(np.diff(outcome.intended_s), 1 / RATE_PER_S, rtol=1e-6)
    assert (outcome.status == 200).all()


def test_nobody_listening_is_a_failure_of_every_request(clients):
    load = Load(free_port(), SCENARIO, SMALL, 20.0, 0.5)
    figures = summary(load, clients.offer(load), 0.0)
    assert figures["failed"] == figures["requests"] == 10
    assert "no connection" in figures["reasons"][0]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error", "requests failed: 500: broken"),
        ("drift", "p50 went from"),
        ("leak", "rss_bytes at its floor"),
    ],
)
def test_a_soak_fails_for_an_injected_fault(clients, fault, words):
    with stand_in(fault) as target:
        found = soak(target, clients, SCENARIO, SMALL, RATE_PER_S, 4.0)
    assert any(words in failure for failure in found["failures"]), found["failures"]


def test_a_short_soak_of_the_real_service_passes(clients):
    with LocalService(encoder="none", on_wait=lambda _: None) as service:
        target = Target(service.url, service.pid)
        mixed = Scenario("small-with-upserts", 20, 8, "json", "host", 10, 50.0, 0.1, 5)
        gpu = Scenario("small-gpu", 20, 8, "json", "gpu", 10, 50.0, 0.1, 5)
        runnable, left_out = filled(target, SMALL, {"mixed": mixed, "gpu": gpu})
        assert list(runnable) == ["mixed"]
        assert "gpu" in left_out["gpu"]
        found = soak(target, clients, mixed, SMALL, 40.0, 8.0)
    assert found["failures"] == []
    assert found["failed"] == 0
    assert found["requests"] == 320
    assert found["upsert_ms"]["p99"] > 0
    assert len(found["memory"]) > 20


def series(value: Any) -> list[dict[str, Any]]:
    kinds = ("rss_bytes", "gpu_bytes", "host_dead_bytes", "gpu_dead_bytes", "store_bytes")
    return [{"at_s": float(t)} | dict.fromkeys(kinds) | value(t) for t in range(900)]


def test_growth_is_of_the_floor_not_of_what_compaction_gives_back():
    steady = series(lambda t: {"rss_bytes": 500e6 + 200e6 * (t % 80) / 80})
    leaking = series(lambda t: {"rss_bytes": 500e6 + 200e6 * (t % 80) / 80 + 2e5 * t})
    warming_up = series(lambda t: {"rss_bytes": 500e6 - 400e6 * math.exp(-t / 40)})
    on_gpu = series(lambda t: {"rss_bytes": None, "gpu_bytes": 1e9 + 1e6 * t})
    assert growths(steady, 900) == []
    assert growths(warming_up, 900) == []
    assert "rss_bytes" in growths(leaking, 900)[0]
    assert "gpu_bytes" in growths(on_gpu, 900)[0]


def test_rows_that_wait_for_compaction_are_no_leak_unless_they_wait_for_ever():
    def overwritten(dead_bytes: float) -> dict[str, Any]:
        return {
            "rss_bytes": 500e6 + dead_bytes,
            "host_dead_bytes": dead_bytes,
            "store_bytes": 300e6 + dead_bytes,
        }

    assert growths(series(lambda t: overwritten(3e5 * t)), 900) == []
    (reason,) = growths(series(lambda t: overwritten(1e6 * t)), 900)
    assert "wait for compaction" in reason


def test_drift_is_of_the_median_not_of_a_hiccup():
    steady = series(lambda t: {"p50": 10.0, "p99": 500.0 if t == 800 else 20.0})
    slower = series(lambda t: {"p50": 10.0, "p99": 20.0 + t / 15})
    assert drifts(steady, 900) == []
    assert len(drifts(slower, 900)) == 1
    assert drifts(slower, 900)[0].startswith("p99")


def figures(rate_per_s: float, carried_per_s: float) -> dict[str, Any]:
    p99 = 10.0 if rate_per_s <= carried_per_s else 500.0
    times = {"p50": 5.0, "p90": 8.0, "p99": p99, "max": p99}
    return {
        "rate_per_s": rate_per_s,
        "requests": 100,
        "rerank_ms": times,
        "saturated": rate_per_s > 1.5 * carried_per_s,
        "passes": p99 < 50,
        "stages_ms": {"queue": 1.0, "kernel": 3.0},
        "service_cores": 1.5,
        "client_cores": 0.1,
        "send_lag_p99_ms": 0.4,
        "rss_bytes": 123_000_000,
    }


@pytest.mark.parametrize("carried_per_s", [20.0, 55.0, 130.0, 400.0])
def test_the_knee_is_found_whatever_the_guess(carried_per_s):
    steps, knee = find_knee(50.0, Steps(), lambda rate, _: figures(rate, carried_per_s))
    assert knee is not None
    assert 0.9 * carried_per_s <= knee["rate_per_s"] <= carried_per_s
    assert [step["rate_per_s"] for step in steps] == sorted(step["rate_per_s"] for step in steps)


def test_one_bad_moment_is_not_the_knee_and_a_lucky_one_is_not_either():
    tried: list[float] = []

    def at(rate_per_s: float, duration_s: float) -> dict[str, Any]:
        tried.append(rate_per_s)
        spoilt = len(tried) == 2  # a neighbour wakes up
        lucky = rate_per_s <= 140 and duration_s < Steps.confirm_s
        return figures(rate_per_s, 0.7 * rate_per_s if spoilt else 140 if lucky else 100)

    _, knee = find_knee(50.0, Steps(), at)
    assert knee is not None
    assert 90 <= knee["rate_per_s"] <= 100


def test_no_rate_keeps_the_objective():
    steps, knee = find_knee(50.0, Steps(), lambda rate, _: figures(rate, 0.1))
    assert knee is None
    assert len(steps) == 1 + Steps.halvings_max


def test_the_report_has_every_knee_and_says_what_is_missing():
    from dataclasses import asdict

    steps, knee = find_knee(50.0, Steps(), lambda rate, _: figures(rate, 55.0))
    measured = {"scenario": asdict(SCENARIO), "steps": steps, "knee": knee, "from_s": 0.0}
    without = {**measured, "scenario": asdict(SCENARIO) | {"name": "hopeless"}, "knee": None, "from_s": 5.0}
    swept = {
        "machine": {"cores": 2, "processor": "a <processor>"},
        "collection": asdict(SMALL),
        "scenarios": [measured, without],
        "left_out": {"small-gpu": "no GPU"},
        "memory": [{"at_s": t, "rss_bytes": 1e9, "gpu_bytes": None} for t in range(10)],
    }
    page, picture = as_markdown(swept, None, "x.svg"), svg(swept)
    assert f"| small | 20 | 8 | msgpack | 50 | **{knee['rate_per_s']:.1f}** |" in page
    assert "| hopeless | 20 | 8 | msgpack | 50 | none |" in page
    assert "- small-gpu: no GPU" in page
    assert "a &lt;processor&gt;" in picture
    assert picture.count("<polyline") > 4


def test_the_catalogue_covers_what_it_should_and_every_message_is_whole():
    catalogue = read()
    scenarios = catalogue.scenarios.values()
    assert {s.candidates for s in scenarios} == {100, 1000, 10000}
    assert {s.query_tokens for s in scenarios} == {32, 1024}
    assert {s.form for s in scenarios} == {"json", "msgpack"}
    assert {s.tier for s in scenarios} == {"host", "gpu"}
    assert any(s.upsert_share for s in scenarios)
    reranks, upserts = messages(catalogue.scenarios["1000-candidates-with-upserts"], SMALL)
    for message in reranks + upserts:
        head, _, body = message.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
    for message in upserts:
        sent = [d["id"] for d in msgspec.msgpack.decode(message.partition(b"\r\n\r\n")[2])["documents"]]
        assert len(set(sent)) == len(sent) == 50


def test_upserts_are_spread_evenly():
    mixed = Scenario("mixed", 20, 8, "json", "host", 10, 50.0, 0.25, 5)
    assert [is_upsert(mixed, n) for n in range(8)] == [False, False, False, True] * 2


@pytest.mark.parametrize(("key", "value"), [("form", "xml"), ("candidates", 0), ("colour", 1)])
def test_a_scenario_that_means_nothing_is_refused_by_name(tmp_path, key, value):
    text = FILE.read_text()
    path = tmp_path / "scenarios.yaml"
    path.write_text(text.replace("  100-candidates:\n", f"  100-candidates:\n    {key}: {value}\n    #", 1))
    with pytest.raises(ValueError, match=rf"100-candidates: .*{key}"):
        read(path)
