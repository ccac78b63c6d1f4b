"""Draws the measured JSON of `maxsim bench forward`: time over limit, ours beside each rival's best."""

from html import escape
from typing import Any

__all__ = ["svg"]

WIDTH, LEFT, RIGHT = 990, 270, 60
TOP, BAR, GAP = 92, 11, 9
# Bars end here, in limits; the number beside a longer one says what it is.
LONGEST = 8
OURS, LIMIT, INK = "#16a34a", "#94a3b8", "#0f172a"
RIVAL_COLOURS = ("#475569", "#93c5fd", "#f59e0b")


def svg(measured: dict[str, Any]) -> str:
    """One group of bars a case, in the order of the rows."""
    names = sorted({name for row in measured["rows"] for name in row["rivals"]})
    colours = {"maxsim": OURS, **dict(zip(names, RIVAL_COLOURS, strict=False))}
    drawn, y = [], TOP
    for row in measured["rows"]:
        times = {"maxsim": row["ours_ms"], **row["rivals"]}
        drawn.append(_group(row["case"], row["limit_ms"], times, colours, y))
        y += BAR * len(times) + GAP
    height = y + 16
    title = f"time over the machine's limit, {measured['gpu']} (1 is the limit; shorter is better)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">'
        f"<style>text{{font-family:system-ui,sans-serif;font-size:12px;fill:{INK}}}.n{{font-size:10px}}</style>"
        f'<rect width="{WIDTH}" height="{height}" fill="#f8fafc"/>'
        f'<text x="20" y="28" style="font-size:15px;font-weight:600">{escape(title)}</text>'
        + _legend(colours)
        + _axis(height)
        + "".join(drawn)
        + "</svg>\n"
    )


def _group(case: str, limit_ms: float, times: dict[str, float], colours: dict[str, str], y: int) -> str:
    middle = y + BAR * len(times) / 2 + 4
    drawn = [f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(case)}</text>']
    for i, (name, ms) in enumerate(times.items()):
        ratio, top = ms / limit_ms, y + BAR * i
        end, beyond = _x(min(ratio, LONGEST)), " →" if ratio > LONGEST else ""
        drawn.append(
            f'<rect x="{LEFT}" y="{top}" width="{end - LEFT:.1f}" height="{BAR - 1}" fill="{colours[name]}"/>'
            f'<text x="{end + 4:.1f}" y="{top + 9}" class="n">{ratio:.2f}{beyond}</text>'
        )
    return "".join(drawn)


def _legend(colours: dict[str, str]) -> str:
    drawn, x = [], 20
    for name, colour in colours.items():
        drawn.append(
            f'<rect x="{x}" y="42" width="12" height="12" fill="{colour}"/>'
            f'<text x="{x + 18}" y="52">{escape(name)}</text>'
        )
        x += 40 + 7 * len(name)
    return "".join(drawn)


def _axis(height: int) -> str:
    return "".join(
        f'<line x1="{_x(tick):.1f}" y1="{TOP - 8}" x2="{_x(tick):.1f}" y2="{height - 12}" '
        f'stroke="{INK if tick == 1 else LIMIT}" stroke-width="{1.5 if tick == 1 else 0.5}"/>'
        f'<text x="{_x(tick):.1f}" y="{TOP - 14}" text-anchor="middle">{tick}</text>'
        for tick in range(LONGEST + 1)
    )


def _x(ratio: float) -> float:
    return LEFT + ratio * (WIDTH - LEFT - RIGHT) / LONGEST
