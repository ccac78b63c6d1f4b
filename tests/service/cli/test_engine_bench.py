"""The engine's bench: what it does over HTTP works on any machine; on a GPU the whole of it runs."""

import json
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest
import torch

from maxsim_serve.__main__ import main
from maxsim_serve.cli.engine_bench import answers, churn, corpus, latency, report, saturation
from maxsim_serve.cli.engine_bench.rows import Goal, Report
from maxsim_serve.cli.local import LocalService

ROOT = Path(__file__).parents[3]


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
    rows = Report({"gpu": "none"}, tmp_path / "rows.json")
    with (
        LocalService(encoder="none", settings={"segment_bytes": 100_000}, on_wait=lambda _: None) as service,
        httpx.Client(base_url=service.url, timeout=60) as client,
    ):
        corpus.fill(client, "small", small, "host")
        medians = latency.latencies(
            rows, service.port, "small", small, name="few", candidates=20, query_rows=8, requests=5,
            engine_ms=Goal(1e9), p50_ms=Goal(0.0),
        )  # fmt: skip
        assert medians["kernel_bytes"] > 0
        latency.searches(rows, client, "small", "all")
        answers.equal_to_library(rows, service.port, "small", small, "small")
        answers.random_sizes(rows, client, service.port, "small", small, requests=40)
        saturation.saturate(rows, client, service.port, "small", len(small), 10)
        churn.churn(rows, client, service.port, "host", 2_000_000, cycles=2)
    found = figures(rows)
    assert found["few: request, p50"] > found["few: engine, median"] > found["few: kernel, median"] > 0
    assert found["small: scores that differ, alone"] == found["small: scores that differ, 64-way"] == 0
    assert found["compilations after ready, 40 random requests"] == 0
    assert found["open loop, 10 candidates: requests a second at p99 ≤ 10 ms"] >= 10
    storm = "2 cycles of 30 % of 0.0 GB"
    assert found[f"{storm}: reads and writes that failed"] == 0
    assert found[f"{storm}: scores unlike a fresh collection's"] == 0
    assert found[f"{storm}: the same in the end"] >= 1
    assert rows.missed == ["few: request, p50"]
    kept = json.loads((tmp_path / "rows.json").read_text())
    assert kept["gpu"] == "none" and kept["rows"] == rows.rows
    assert {"case", "value", "unit", "limit"} <= set(kept["rows"][0])


def test_the_page_and_the_picture_show_every_figure():
    measured = json.loads((ROOT / "docs/benchmarks/h200-engine.json").read_text())
    page = report.as_markdown(measured)
    for row in measured["rows"]:
        assert row["case"].rpartition(": ")[0] in page
        if row["limit"] is not None:
            assert f"| {row['case']} |" in page
    assert page.count("**missed**") == sum(row.get("met") is False for row in measured["rows"])
    picture = ElementTree.fromstring(report.svg(measured))
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"gpu tier, 100 × ~120", "lookup", "the rest"} <= set(texts)
    assert report.as_markdown(measured) in (ROOT / "docs/benchmarks/h200-engine.md").read_text()


def test_a_wrong_score_is_counted(monkeypatch):
    one = torch.ones(2).numpy()
    assert answers._different([one, one], [one, 2 * one]) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["bench", "engine"]) == 1
    assert "needs a CUDA GPU" in capsys.readouterr().err
