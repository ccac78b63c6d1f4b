"""Draws the pictures in docs/ and prints the settings table into the README. Run by `make docs`."""

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from maxsim.bench import forward_plot, forward_report
from maxsim_serve.cli.engine_bench import report as engine_report
from maxsim_serve.settings import as_markdown

ROOT = Path(__file__).parent.parent
TABLE_START = "<!-- settings: printed by `make docs` -->\n"
TABLE_END = "<!-- end of settings -->"
MEASURED_START = "<!-- measured: printed by `make docs` -->\n"
MEASURED_END = "<!-- end of measured -->"


@dataclass(frozen=True)
class Box:
    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...]
    fill: str = "#ffffff"

    def svg(self) -> str:
        middle = self.x + self.width / 2
        texts = [f'<text x="{middle}" y="{self.y + 24}" class="title">{escape(self.title)}</text>']
        texts += [
            f'<text x="{middle}" y="{self.y + 44 + 17 * i}" class="line">{escape(line)}</text>'
            for i, line in enumerate(self.lines)
        ]
        return (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="8" '
            f'fill="{self.fill}" stroke="#334155" stroke-width="1.5"/>' + "".join(texts)
        )


BLUE, GREEN, SAND, ROSE = "#e0f2fe", "#dcfce7", "#fef3c7", "#ffe4e6"

BOXES = (
    Box(20, 130, 150, 92, "retriever", ("BM25, vectors, SQL", "→ candidate ids")),
    Box(20, 300, 150, 92, "Prometheus", ("latency, memory,", "queue, store")),
    Box(
        240,
        40,
        190,
        350,
        "api",
        (
            "one event loop",
            "",
            "/rerank  /search",
            "/collections",
            "/documents",
            "/metrics  /docs",
            "",
            "parse and check,",
            "refuse by name,",
            "answer",
        ),
        BLUE,
    ),
    Box(500, 40, 200, 92, "encode", ("text → token rows", "queries overtake documents"), ROSE),
    Box(
        500,
        160,
        200,
        104,
        "engine",
        ("bounded queue, deadlines", "one thread owns the scoring", "many requests, one work list"),
        GREEN,
    ),
    Box(500, 300, 200, 92, "store", ("ids, snapshots, compaction", "durable before it answers"), SAND),
    Box(
        770,
        160,
        200,
        104,
        "maxsim",
        ("score_pairs, top_k, explain", "exact fp32, bit-identical", "in any batch"),
        GREEN,
    ),
    Box(770, 290, 200, 56, "memory", ("token rows, packed",), SAND),
    Box(770, 358, 200, 56, "disk", ("segments, SQLite catalog",), SAND),
)

# From and to.
ARROWS = (
    ((170, 176), (240, 176)),
    ((240, 346), (170, 346)),
    ((430, 86), (500, 86)),
    ((430, 212), (500, 212)),
    ((600, 264), (600, 300)),
    ((430, 346), (500, 346)),
    ((700, 212), (770, 212)),
    ((870, 290), (870, 264)),
    ((700, 330), (770, 318)),
    ((700, 362), (770, 386)),
)


def architecture() -> str:
    arrows = "".join(
        f'<line x1="{a[0]}" y1="{a[1]}" x2="{b[0]}" y2="{b[1]}" stroke="#334155" stroke-width="1.5" '
        'marker-end="url(#tip)"/>'
        for a, b in ARROWS
    )
    style = (
        "text{font-family:system-ui,sans-serif;text-anchor:middle;fill:#0f172a}"
        ".title{font-size:16px;font-weight:600}.line{font-size:12.5px;fill:#334155}"
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 990 430" width="990" height="430" role="img" '
        'aria-label="Data flows one way: api, engine, store, maxsim">'
        f"<style>{style}</style>"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="#334155"/></marker></defs>'
        '<rect width="990" height="430" fill="#f8fafc"/>'
        + "".join(box.svg() for box in BOXES)
        + arrows
        + "</svg>\n"
    )


def with_table(page: str, start: str, table: str, end: str) -> str:
    """The page with what stands between its two marks replaced."""
    before, rest = page.split(start)
    _, after = rest.split(end)
    return before + start + "\n" + table + "\n" + end + after


def cpu_bench(measured: dict[str, Any]) -> str:
    """Bars of `maxsim bench cpu --json`: median ms at the most candidates, beside the sgemm limit."""
    candidates = max(timing["candidates"] for timing in measured["timings"])
    rows = [timing for timing in measured["timings"] if timing["candidates"] == candidates]
    limit_ms = rows[0]["median_ms"] * rows[0]["share_of_peak"]
    bars = [("limit (sgemm peak)", limit_ms, "#94a3b8")]
    bars += [
        (row["contender"], row["median_ms"], "#16a34a" if row["contender"] == "maxsim" else "#64748b")
        for row in rows
    ]
    scale = 560 / max(ms for _, ms, _ in bars)
    height = 60 + 34 * len(bars)
    drawn = "".join(
        f'<text x="170" y="{68 + 34 * i}" text-anchor="end">{escape(name)}</text>'
        f'<rect x="180" y="{52 + 34 * i}" width="{ms * scale:.0f}" height="22" rx="3" fill="{colour}"/>'
        f'<text x="{186 + ms * scale:.0f}" y="{68 + 34 * i}">{ms:.1f} ms</text>'
        for i, (name, ms, colour) in enumerate(bars)
    )
    title = f"one 32-row query against {candidates:,} passages, 128 wide, two threads"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 {height}" width="830" height="{height}" '
        f'role="img" aria-label="{title}">'
        "<style>text{font-family:system-ui,sans-serif;font-size:13px;fill:#0f172a}</style>"
        f'<rect width="830" height="{height}" fill="#f8fafc"/>'
        f'<text x="20" y="30" style="font-size:15px;font-weight:600">{title}</text>{drawn}</svg>\n'
    )


if __name__ == "__main__":
    measured = json.loads((ROOT / "docs/benchmarks/cpu.json").read_text(encoding="utf-8"))
    (ROOT / "docs/benchmarks/cpu.svg").write_text(cpu_bench(measured), encoding="utf-8")
    (ROOT / "docs/architecture.svg").write_text(architecture(), encoding="utf-8")
    readme = ROOT / "README.md"
    settings = with_table(readme.read_text(encoding="utf-8"), TABLE_START, as_markdown(), TABLE_END)
    readme.write_text(settings, encoding="utf-8")
    for name, picture, tables in (
        ("h200-forward", forward_plot.svg, forward_report.as_markdown),
        ("h200-engine", engine_report.svg, engine_report.as_markdown),
    ):
        figures = ROOT / f"docs/benchmarks/{name}.json"
        measured = json.loads(figures.read_text(encoding="utf-8"))
        figures.with_suffix(".svg").write_text(picture(measured), encoding="utf-8")
        page = figures.with_suffix(".md")
        shown = with_table(page.read_text(encoding="utf-8"), MEASURED_START, tables(measured), MEASURED_END)
        page.write_text(shown, encoding="utf-8")
