"""Tables and pictures from made-up measurements, and what is read of a profiler's output."""

import xml.etree.ElementTree as ET

import pytest

from maxsim.bench import forward_plot, traffic
from maxsim.bench.forward_report import as_lines, as_markdown


def row(case, ours_ms, limit_ms, rivals=None, **more):
    return {
        "case": case,
        "kernel": "short_query",
        "ours_ms": ours_ms,
        "limit_ms": limit_ms,
        "share_of_limit": limit_ms / ours_ms,
        "host_us": 21.4,
        "rivals": rivals or {},
        **more,
    }


@pytest.fixture
def measured():
    peers = {"flash-maxsim": 0.07, "late-interaction-kernels": 0.08}
    return {
        "gpu": "NVIDIA H200",
        "driver": "1.2",
        "torch": "2.11",
        "triton": "3.6",
        "date": "2026-01-02T03:04:05+00:00",
        "ceilings": {
            "copy_tb_per_s": 4.25,
            "read_tb_per_s": 4.4,
            "matmul_tflop_per_s": {"float16": 700.0, "float32": 50.0},
            "empty_kernel_us": 2.0,
        },
        "rows": [
            row("32x300", 0.035, 0.0175, peers, graph_ms=0.03, baselines={"naive fp16": 0.072}),
            row("1024x1024", 0.5, 0.34, {"flash-maxsim": 5.61}, baselines={}),
            row("64 queries, 1024x1024 B64", 12.5, 10.0, graph_error="waits"),
            row("by id, 20,000 of 200,000 passages", 1.0, 0.1, {"late-interaction-kernels": 123.456}),
        ],
        "tables": {
            "memory": [
                memory(10_000, naive_peak_bytes=21 * 10**9),
                memory(100_000, naive_error="out of memory"),
            ],
            "odd_lengths": [
                {"rows": 32, "tokens": 1000, "ns_per_token": 0.07, "compilations": 0},
                {"rows": 32, "tokens": 1001, "ns_per_token": 0.084, "compilations": 1},
            ],
            "numerics": [
                {
                    "dtype": "float16",
                    "rows": 32,
                    "tokens": 300,
                    "ours_error": 1.2e-7,
                    "naive_error": 3.4e-4,
                    "ours_top20": 1.0,
                    "naive_top20": 0.95,
                }
            ],
            "traffic": [
                {
                    "case": "32x1024",
                    "by": "ncu",
                    "counted_bytes": 262_000_000,
                    "read_bytes": 263_000_000,
                    "write_bytes": 10_000,
                    "measured_over_counted": 263 / 262,
                },
                {"case": "1024x1024", "by": "counted", "counted_bytes": 1, "why_not_measured": "no ncu"},
            ],
        },
    }


def memory(documents, naive_peak_bytes=None, naive_error=None):
    return {
        "documents": documents,
        "documents_bytes": documents * 262_144,
        "ours_peak_bytes": 4 * documents,
        "ours_share_of_documents": 4 / 262_144,
        "ours_ms": 3.4,
        "naive_peak_bytes": naive_peak_bytes,
        "naive_error": naive_error,
        "naive_similarity_bytes": documents * 2**21,
    }


def test_lines_fit_and_name_the_best_rival(measured):
    lines = as_lines(measured)
    assert max(map(len, lines)) <= 110
    assert lines[1].split() == [
        "32x300",
        "0.0350",
        "0.0300",
        "0.0175",
        "50%",
        "flash-maxsim",
        "0.0700",
        "0.50",
        "21",
    ]
    assert lines[3].split()[-4:] == ["12.500", "10.000", "80%", "21"]
    assert lines[4].split()[-4:] == ["l-i-kernels", "123.456", "0.01", "21"]


def test_markdown_has_every_table(measured):
    text = as_markdown(measured)
    assert (
        "| 32x300 | short_query | 0.0350 | 0.0300 | 0.0175 | 50% | flash-maxsim | 0.0700 | 0.50 | 21 |"
        in text
    )
    assert "| rows × tokens | naive fp16 | flash-maxsim | late-interaction-kernels | ours | limit |" in text
    assert "| 1024x1024 |  | 5.610 |  | 0.5000 | 0.3400 |" in text
    assert "| 10,000 | 2.6 | 0.0 | 0.002% | 3.4 | 21.0 | 21 |" in text
    assert "| 100,000 | 26.2 | 0.4 | 0.002% | 3.4 | out of memory | 210 |" in text
    assert "| 32 | 0.0700 | 0.0840 | 1001 tokens | 1.200 | 1 |" in text
    assert "| float16 | 32x300 | 1.2e-07 | 3.4e-04 | 100% | 95% |" in text
    assert "| 32x1024 | 262.0 | 263.0 | 0.0 | 1.004 | ncu |" in text
    assert "counted only: no ncu" in text
    for table in text.split("\n\n"):
        widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert len(widths) <= 1, table


def test_only_what_was_measured_is_printed(measured):
    measured["tables"] = {}
    assert "Peak memory" not in as_markdown(measured)


def test_bars_are_as_long_as_time_over_limit(measured):
    drawing = ET.fromstring(forward_plot.svg(measured))
    name = "{http://www.w3.org/2000/svg}"
    ours = [
        r for r in drawing.iter(name + "rect") if r.get("fill") == forward_plot.OURS and r.get("x") != "20"
    ]
    one_limit = (forward_plot.WIDTH - forward_plot.LEFT - forward_plot.RIGHT) / forward_plot.LONGEST
    lengths = [float(bar.get("width")) / one_limit for bar in ours]
    assert lengths == pytest.approx([2, 0.5 / 0.34, 1.25, forward_plot.LONGEST], abs=0.01)
    said = [text.text for text in drawing.iter(name + "text")]
    assert {"32x300", "by id, 20,000 of 200,000 passages", "1234.56 →", "10.00 →", "2.00"} <= set(said)


NCU = """==PROF== Connected to process 7
==PROF== Disconnected
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","a","dram__bytes_read.sum","Mbyte","1,262.25"
"0","7","a","dram__bytes_write.sum","Kbyte","12.5"
"1","7","b","dram__bytes_read.sum","byte","750"
"1","7","b","dram__bytes_write.sum","byte","0"
"1","7","b","launch__registers","register/thread","40"
"""


def test_traffic_is_summed_over_kernels():
    assert traffic.parse_ncu(NCU) == {"read_bytes": 1_262_250_750, "write_bytes": 12_500}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "no table", id="empty"),
        pytest.param("==ERROR== ERR_NVGPUCTRPERM", "ERR_NVGPUCTRPERM", id="forbidden"),
        pytest.param(
            '"ID","Metric Name","Metric Unit","Metric Value"\n', "none of the metrics", id="no rows"
        ),
    ],
)
def test_other_output_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        traffic.parse_ncu(text)


def test_without_a_profiler_bytes_are_counted(measured, monkeypatch):
    monkeypatch.setattr(traffic.shutil, "which", lambda name: None)
    rows = [{"case": "32x1024", "bytes": 262}, {"case": "another", "bytes": 1}]
    assert traffic.traffic(rows) == [
        {"case": "32x1024", "counted_bytes": 262, "by": "counted", "why_not_measured": "ncu is not installed"}
    ]


def test_a_failing_profiler_is_tried_once(monkeypatch):
    tried = []

    def fail(case):
        tried.append(case)
        raise ValueError("ncu ended with 1")

    monkeypatch.setattr(traffic.shutil, "which", lambda name: "/bin/ncu")
    monkeypatch.setattr(traffic, "_measured", fail)
    entries = traffic.traffic([{"case": case, "bytes": 8} for case in traffic.PROBED])
    assert tried == [traffic.PROBED[0]]
    assert [entry["by"] for entry in entries] == ["counted"] * 3
    assert all(entry["why_not_measured"] == "ValueError: ncu ended with 1" for entry in entries)
