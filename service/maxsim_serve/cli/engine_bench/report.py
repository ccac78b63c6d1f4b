"""The rows of `maxsim bench engine` for a page: tables of goals, of stages, of the rest; and a picture."""

from html import escape
from typing import Any

__all__ = ["as_markdown", "svg"]

# In the order of a request. What is left of the engine's time is waits, and its own book-keeping.
_STAGES = ("lookup", "launch", "upload", "kernel", "select", "download", "topk")
_COLOURS = ("#0ea5e9", "#6366f1", "#f59e0b", "#16a34a", "#84cc16", "#f97316", "#a855f7", "#cbd5e1")
_LEFT, _WIDTH, _BAR = 330, 990, 26


def as_markdown(measured: dict[str, Any]) -> str:
    """The tables between the marks of docs/benchmarks/h200-engine.md."""
    rows = measured["rows"]
    lines = [
        f"{measured['gpu']}, torch {measured['torch']}, Triton {measured['triton']}, {measured['date']}",
        "",
    ]
    lines += ["| figure | measured | goal | |", "| --- | ---: | ---: | --- |"]
    for row in rows:
        if row["limit"] is not None:
            goal = f"{row['sense']} {row['limit']:,g}"
            met = "met" if row["met"] else "**missed**"
            lines.append(f"| {row['case']} | {row['value']:,.4g} {row['unit']} | {goal} | {met} |")
    requests = _requests(measured)
    lines += [
        "",
        "Medians of the stages, in ms, one request at a time; *engine* is from look-up to results:",
        "",
    ]
    lines += ["| request | engine | " + " | ".join(_STAGES) + " |", "| --- " + "| ---: " * 8 + "|"]
    for name, stages in requests.items():
        cells = (f"{stages[stage]:.3f}" if stage in stages else "" for stage in ("engine", *_STAGES))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| figure | measured |", "| --- | ---: |"]
    shown = {f"{name}: {stage}, median" for name, stages in requests.items() for stage in stages}
    for row in rows:
        if row["limit"] is None and row["case"] not in shown:
            lines.append(f"| {row['case']} | {row['value']:,.4g} {row['unit']} |")
    return "\n".join(lines) + "\n"


def svg(measured: dict[str, Any]) -> str:
    """A bar a kind of request: where the engine's time goes."""
    requests = _requests(measured)
    longest_ms = max(stages["engine"] for stages in requests.values())
    scale = (_WIDTH - _LEFT - 80) / longest_ms
    height = 84 + (_BAR + 10) * len(requests)
    title = f"the engine's part of one request, median ms, {measured['gpu']}"
    drawn = [
        f'<rect x="{20 + 110 * i}" y="40" width="12" height="12" fill="{colour}"/>'
        f'<text x="{38 + 110 * i}" y="51">{name}</text>'
        for i, (name, colour) in enumerate(zip((*_STAGES, "the rest"), _COLOURS, strict=True))
    ]
    for number, (name, stages) in enumerate(requests.items()):
        drawn.append(_bar(name, stages, 68 + (_BAR + 10) * number, scale))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">'
        "<style>text{font-family:system-ui,sans-serif;font-size:12px;fill:#0f172a}</style>"
        f'<rect width="{_WIDTH}" height="{height}" fill="#f8fafc"/>'
        f'<text x="20" y="26" style="font-size:15px;font-weight:600">{escape(title)}</text>'
        + "".join(drawn)
        + "</svg>\n"
    )


def _bar(name: str, stages: dict[str, float], y: int, scale: float) -> str:
    parts = [stages.get(stage, 0.0) for stage in _STAGES]
    parts.append(max(0.0, stages["engine"] - sum(parts)))
    drawn, x = [f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(name)}</text>'], float(_LEFT)
    for part_ms, colour in zip(parts, _COLOURS, strict=True):
        drawn.append(
            f'<rect x="{x:.1f}" y="{y}" width="{part_ms * scale:.1f}" height="{_BAR}" fill="{colour}"/>'
        )
        x += part_ms * scale
    return "".join(drawn) + f'<text x="{x + 6:.1f}" y="{y + 17}">{stages["engine"]:.3f}</text>'


def _requests(measured: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By kind of request the median of each stage in ms, `engine` for the whole of its part."""
    found: dict[str, dict[str, float]] = {}
    for row in measured["rows"]:
        name, _, what = row["case"].rpartition(": ")
        if what.endswith(", median"):
            found.setdefault(name, {})[what.removesuffix(", median")] = row["value"]
    return {name: stages for name, stages in found.items() if "kernel" in stages}
