"""The engine's bench: what it does over HTTP works on any machine; on a GPU the whole of it runs."""

import json

import httpx
import pytest
import torch

from maxsim_serve.__main__ import main
from maxsim_serve.cli.engine_bench import answers, churn, corpus, latency, saturation
from maxsim_serve.cli.engine_bench.rows import Goal, Report
from maxsim_serve.cli.local import LocalService


def figures(report):
    return {row["case"]: row["value"] for row in report.rows}


@pytest.mark.slow
def test_its_parts_measure_a_service(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(saturation, "_PROCESSES", 1)
    monkeypatch.setattr(saturation, "_FIRST_PER_S", 10.0)
    monkeypatch.setattr(saturation, "_GROWTH", 10.0)
    monkeypatch.setattr(saturation, "_HALVINGS", 1)
    monkeypatch.setattr(saturation, "_STEP_S", 0.5)
    monkeypatch.setattr(saturation, "_CONFIRM_S", 0.5)
    monkeypatch.setattr(saturation, "_OBJECTIVE_S", 0.2)
    small = corpus.make(60, 1, 40, seed=1)
    report = Report({"gpu": "none"}, tmp_path / "rows.json")
    with (
        LocalService(encoder="none", settings={"segment_bytes": 100_000}, on_wait=lambda _: None) as service,
        httpx.Client(base_url=service.url, timeout=60) as client,
    ):
        corpus.fill(client, "small", small, "host")
        medians = latency.latencies(
            report, service.port, "small", small, name="few", candidates=20, query_rows=8, requests=5,
            engine_ms=Goal(1e9), p50_ms=Goal(0.0),
        )  # fmt: skip
        assert medians["kernel_bytes"] > 0
        latency.searches(report, client, "small", "all")
        answers.equal_to_library(report, service.port, "small", small, "small")
        answers.random_sizes(report, client, service.port, "small", small, requests=40)
        saturation.saturate(report, client, service.port, "small", len(small), 10)
        churn.churn(report, client, service.port, "host", 2_000_000, cycles=2)
    found = figures(report)
    assert found["few: request, p50"] > found["few: engine, median"] > found["few: kernel, median"] > 0
    assert found["small: scores that differ, alone"] == found["small: scores that differ, 64-way"] == 0
    assert found["compilations after ready, 40 random requests"] == 0
    assert found["open loop, 10 candidates: requests a second at p99 ≤ 10 ms"] >= 10
    storm = "2 cycles of 30 % of 0.0 GB"
    assert found[f"{storm}: reads and writes that failed"] == 0
    assert found[f"{storm}: scores unlike a fresh collection's"] == 0
    assert found[f"{storm}: the same in the end"] >= 1
    assert report.missed == ["few: request, p50"]
    kept = json.loads((tmp_path / "rows.json").read_text())
    assert kept["gpu"] == "none" and kept["rows"] == report.rows
    assert {"case", "value", "unit", "limit"} <= set(kept["rows"][0])


def test_a_wrong_score_is_counted(monkeypatch):
    one = torch.ones(2).numpy()
    assert answers._different([one, one], [one, 2 * one]) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["bench", "engine"]) == 1
    assert "needs a CUDA GPU" in capsys.readouterr().err
