"""Draws a sweep: latency against offered rate, where a rerank's time goes at the knee, memory over time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

__all__ = ["svg"]

WIDTH, LEFT, RIGHT, HEIGHT = 990, 70, 250, 300
INK, GRID = "#0f172a", "#cbd5e1"
COLOURS = ("#2563eb", "#16a34a", "#f59e0b", "#dc2626", "#7c3aed", "#0891b2", "#db2777", "#65a30d", "#64748b")
_GB = 1e9

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """A range of values over `pixels`; `low` lies at `at`, and a negative length points upwards."""

    low: float
    high: float
    at: float
    pixels: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.at + self.pixels * share

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [step * 10.0**power for power in powers for step in (1, 2, 5)]
            return [tick for tick in found if self.low <= tick <= self.high]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 2))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (step * m) <= 8)
        return [step * n for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def svg(swept: dict[str, Any]) -> str:
    """A picture of three panels, one below the other. `swept` is the JSON of `sweep.py`."""
    height = 3 * (HEIGHT + 100) + 20
    title = f"offered load on {swept['machine']['cores']} cores, {swept['machine']['processor']}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">'
        f"<style>text{{font-family:system-ui,sans-serif;font-size:12px;fill:{INK}}}"
        ".title{font-size:15px;font-weight:600}</style>"
        f'<rect width="{WIDTH}" height="{height}" fill="#f8fafc"/>'
        + _latency(swept["scenarios"], 60)
        + _stages(swept["scenarios"], 60 + HEIGHT + 100)
        + _memory(swept["memory"], swept["scenarios"], 60 + 2 * (HEIGHT + 100))
        + "</svg>\n"
    )


def _latency(scenarios: Sequence[dict[str, Any]], top: int) -> str:
    """p99 against rate, logarithmic; a ring where the knee is, a hollow end where sending had to stop."""
    points = [
        (
            name_of(s),
            [(f["rate_per_s"], f["rerank_ms"]["p99"], f["saturated"]) for f in s["steps"] if f["rerank_ms"]],
        )
        for s in scenarios
    ]
    rates = [rate for _, steps in points for rate, _, _ in steps]
    times = [ms for _, steps in points for _, ms, _ in steps]
    x = Axis(min(rates) * 0.8, max(rates) * 1.2, LEFT, WIDTH - LEFT - RIGHT, logarithmic=True)
    y = Axis(min(times) * 0.8, max(times) * 1.2, top + HEIGHT, -HEIGHT, logarithmic=True)
    drawn = [
        _frame(x, y, top, "p99 latency from the intended send time, ms, against offered requests a second")
    ]
    for place, ((name, steps), scenario) in enumerate(zip(points, scenarios, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        drawn.append(_line([(x(rate), y(ms)) for rate, ms, _ in steps], colour))
        drawn += [
            f'<circle cx="{x(rate):.1f}" cy="{y(ms):.1f}" r="3" stroke="{colour}" '
            f'fill="{"#f8fafc" if saturated else colour}"/>'
            for rate, ms, saturated in steps
        ]
        if knee := scenario["knee"]:
            at_x, at_y = x(knee["rate_per_s"]), y(knee["rerank_ms"]["p99"])
            ring = f'r="7" fill="none" stroke="{colour}" stroke-width="2"'
            drawn.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" {ring}/>')
        objective = scenario["scenario"]["objective_p99_ms"]
        drawn.append(_legend(place, name, colour, top, f"p99 ≤ {objective:g} ms"))
    for objective in sorted({s["scenario"]["objective_p99_ms"] for s in scenarios}):
        if y.low <= objective <= y.high:
            drawn.append(_line([(x(x.low), y(objective)), (x(x.high), y(objective))], INK, dashed=True))
    note = "ring: the knee; hollow: too much unanswered, sending stopped; dashed: objectives"
    drawn.append(f'<text x="{LEFT}" y="{top + HEIGHT + 36}">{note}</text>')
    return "".join(drawn)


def _stages(scenarios: Sequence[dict[str, Any]], top: int) -> str:
    """Bars of the mean time in each stage at the knee, as /metrics has it, stacked to 100 %."""
    shown = [s for s in scenarios if s["knee"] and s["knee"]["stages_ms"]]
    stages = list(dict.fromkeys(stage for s in shown for stage in s["knee"]["stages_ms"]))
    x = Axis(0, 100, LEFT + 170, WIDTH - LEFT - 170 - RIGHT)
    drawn = [
        f'<text x="20" y="{top - 16}" class="title">stages of a rerank at the knee, % of their sum</text>'
    ]
    bar = min(48, HEIGHT // max(1, len(shown)))
    for row, scenario in enumerate(shown):
        times, y, done = scenario["knee"]["stages_ms"], top + row * bar, 0.0
        whole = sum(times.values())
        name = escape(name_of(scenario))
        drawn.append(f'<text x="{x.at - 8}" y="{y + bar / 2 + 4:.0f}" text-anchor="end">{name}</text>')
        for stage, ms in times.items():
            left, right = x(100 * done / whole), x(100 * (done + ms) / whole)
            colour = COLOURS[stages.index(stage) % len(COLOURS)]
            drawn.append(
                f'<rect x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="{bar - 6}" fill="{colour}">'
                f"<title>{stage} {ms:.2f} ms</title></rect>"
            )
            done += ms
        drawn.append(f'<text x="{x(100) + 6:.0f}" y="{y + bar / 2 + 2:.0f}">{whole:.1f} ms</text>')
    drawn += [_legend(i, stage, COLOURS[i % len(COLOURS)], top, column=75) for i, stage in enumerate(stages)]
    return "".join(drawn)


def _memory(samples: Sequence[dict[str, Any]], scenarios: Sequence[dict[str, Any]], top: int) -> str:
    """Resident memory over the whole sweep, and the GPU's if there is one; dashes where a scenario begins."""
    kinds = {"rss_bytes": "resident, host", "gpu_bytes": "GPU"}
    lines = {
        label: [(s["at_s"], s[kind] / _GB) for s in samples if s[kind] is not None]
        for kind, label in kinds.items()
    }
    seen = [value for line in lines.values() for _, value in line]
    if not seen:
        return ""
    x = Axis(0, max(s["at_s"] for s in samples), LEFT, WIDTH - LEFT - RIGHT)
    y = Axis(0, max(seen) * 1.1, top + HEIGHT, -HEIGHT)
    drawn = [_frame(x, y, top, "memory over time, GB against seconds")]
    for place, (label, line) in enumerate(item for item in lines.items() if item[1]):
        drawn.append(_line([(x(at), y(value)) for at, value in line], COLOURS[place]))
        drawn.append(_legend(place, label, COLOURS[place], top))
    for scenario in scenarios:
        at = x(scenario["from_s"])
        drawn.append(_line([(at, top), (at, top + HEIGHT)], GRID, dashed=True))
        turned = f"translate({at + 13:.0f},{top + HEIGHT - 6}) rotate(-90)"
        drawn.append(f'<text transform="{turned}">{escape(name_of(scenario))}</text>')
    return "".join(drawn)


def name_of(scenario: dict[str, Any]) -> str:
    return str(scenario["scenario"]["name"])


def _frame(x: Axis, y: Axis, top: int, title: str) -> str:
    right = x.at + x.pixels
    drawn = [f'<text x="20" y="{top - 16}" class="title">{escape(title)}</text>']
    for tick in x.ticks():
        drawn.append(_line([(x(tick), top), (x(tick), top + HEIGHT)], GRID))
        drawn.append(f'<text x="{x(tick):.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{tick:g}</text>')
    for tick in y.ticks():
        drawn.append(_line([(x.at, y(tick)), (right, y(tick))], GRID))
        drawn.append(f'<text x="{x.at - 6:.0f}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    return "".join(drawn)


def _line(points: Sequence[Point], colour: str, *, dashed: bool = False) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>'


def _legend(place: int, name: str, colour: str, top: int, note: str = "", column: int = 0) -> str:
    x, y = WIDTH - RIGHT + 20 + column, top + 14 + (34 if note else 20) * place
    drawn = (
        f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
        f'<text x="{x + 18}" y="{y}">{escape(name)}</text>'
    )
    return drawn + (
        f'<text x="{x + 18}" y="{y + 14}" fill-opacity="0.6">{escape(note)}</text>' if note else ""
    )
