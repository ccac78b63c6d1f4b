"""Writes the report of a sweep, and of a soak if there is one: Markdown and a picture beside the JSON.

    python loadtest/load_report.py docs/benchmarks/cpu-load.json [docs/benchmarks/cpu-load-soak.json]

writes docs/benchmarks/cpu-load.md and cpu-load.svg. Every figure in them is in the JSON.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import load_plot

__all__ = ["as_markdown"]


_METHOD = """\
Requests leave at a constant rate whatever is answered, and latency counts from the moment at which a request
should have left; nothing is retried. The knee is the highest rate at which every request was answered 200 and
the 99th percentile of the reranks kept its objective. The scenarios are data: `loadtest/scenarios.yaml`."""
_COMMANDS = """\
```bash
python loadtest/sweep.py --json docs/benchmarks/cpu-load.json
python loadtest/soak.py --json docs/benchmarks/cpu-load-soak.json
python loadtest/load_report.py docs/benchmarks/cpu-load.json docs/benchmarks/cpu-load-soak.json
```"""
_COLUMNS = """\
Cores are the processor time of the service and of the client over the run's wall time. *Left late* is the
99th percentile of how long after its time a request left the client, which is in its latency."""
_STAGES = """\
Mean ms of a request, from `maxsim_stage_duration_seconds`. `kernel` is the time of the whole work list that a
request was scored in."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path)
    parser.add_argument("soak", type=Path, nargs="?")
    args = parser.parse_args()
    swept = json.loads(args.sweep.read_text(encoding="utf-8"))
    soaked = json.loads(args.soak.read_text(encoding="utf-8")) if args.soak else None
    picture = args.sweep.with_suffix(".svg")
    picture.write_text(load_plot.svg(swept), encoding="utf-8")
    page = as_markdown(swept, soaked, picture.name)
    args.sweep.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0


def as_markdown(swept: dict[str, Any], soaked: dict[str, Any] | None, picture: str) -> str:
    """The page, ending in a newline. `swept` and `soaked` are the JSON of `sweep.py` and `soak.py`."""
    on, filled = swept["machine"], swept["collection"]
    parts = [
        "# What the service carries",
        f"One `maxsim serve` on {on['cores']} cores ({on['processor']}), the client's process on the same; "
        f"{filled['documents']:,} random passages of {filled['mean_tokens']} rows on average, "
        f"{filled['dim']} wide, float16.\n{_METHOD}",
        _COMMANDS,
        f"![p99 against offered rate, stages, memory]({picture})",
        "## The knees",
        _knees(swept["scenarios"]),
        _COLUMNS,
        "## Where the time goes, at the knee",
        _stages(swept["scenarios"]),
        _STAGES,
    ]
    if swept["left_out"]:
        parts.append("## Left out")
        parts.append("\n".join(f"- {name}: {reason}" for name, reason in swept["left_out"].items()))
    if soaked is not None:
        parts += ["## Soak", _soak(soaked)]
    return "\n\n".join(parts) + "\n"


def _knees(scenarios: list[dict[str, Any]]) -> str:
    rows = []
    for measured in scenarios:
        scenario, knee = measured["scenario"], measured["knee"]
        asked = [
            scenario["name"],
            f"{scenario['candidates']:,}",
            f"{scenario['query_tokens']:,}",
            scenario["form"],
            f"{scenario['objective_p99_ms']:g}",
        ]
        if knee is None:
            rows.append([*asked, "none", *[""] * 7])
            continue
        times = knee["rerank_ms"]
        rows.append(
            [
                *asked,
                f"**{knee['rate_per_s']:.1f}**",
                f"{times['p50']:.1f}",
                f"{times['p99']:.1f}",
                f"{knee['requests']:,}",
                _or_blank(knee["service_cores"], 1, "{:.2f}"),
                f"{knee['client_cores']:.2f}",
                f"{knee['send_lag_p99_ms']:.1f}",
                _or_blank(knee["rss_bytes"], 1e6, "{:,.0f}"),
            ]
        )
    return _table(
        "scenario|candidates|query rows|form|objective p99 ms|requests/s|p50 ms|p99 ms|requests|"
        "service cores|client cores|left late ms|RSS MB",
        rows,
    )


def _stages(scenarios: list[dict[str, Any]]) -> str:
    with_knee = [measured for measured in scenarios if measured["knee"]]
    stages = list(dict.fromkeys(stage for m in with_knee for stage in m["knee"]["stages_ms"]))
    rows = [
        [
            m["scenario"]["name"],
            *(_or_blank(m["knee"]["stages_ms"].get(stage), 1, "{:.2f}") for stage in stages),
        ]
        for m in with_knee
    ]
    return _table("|".join(["scenario", *stages]), rows)


def _soak(soaked: dict[str, Any]) -> str:
    times = soaked["rerank_ms"]
    rss_mb = [sample["rss_bytes"] / 1e6 for sample in soaked["memory"] if sample["rss_bytes"] is not None]
    verdict = "passed" if not soaked["failures"] else "FAILED: " + "; ".join(soaked["failures"])
    memory = f" Resident memory was between {min(rss_mb):,.0f} and {max(rss_mb):,.0f} MB." if rss_mb else ""
    return (
        f"`{soaked['scenario']['name']}` at {soaked['rate_per_s']:.1f} requests a second for "
        f"{soaked['duration_s']:g} s: **{verdict}**. "
        f"{soaked['requests']:,} requests, {soaked['failed']} failed, "
        f"p50 {times['p50']:.1f} ms, p99 {times['p99']:.1f} ms, worst {times['max']:.1f} ms.{memory} "
        "What it would fail on stands at the top of `loadtest/soak.py`."
    )


def _or_blank(value: float | None, unit: float, form: str) -> str:
    return "" if value is None else form.format(value / unit)


def _table(head: str, rows: list[list[str]]) -> str:
    names = head.split("|")
    lines = [" | ".join(cells) for cells in [names, ["---"] * len(names), *rows]]
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
