"""How much the machine carries: offers each scenario at rising constant rates and finds the knee.

    python loadtest/sweep.py --json docs/benchmarks/cpu-load.json [--scenarios 100-candidates,1000-candidates]
    python loadtest/load_report.py docs/benchmarks/cpu-load.json      # the table and the plots

Starts a service of its own and fills it, unless `--url` names one. Latency counts from the moment at which a
request should have left. A scenario's knee is the highest rate at which every request was answered and the
99th percentile of the reranks kept the scenario's objective (see `scenarios.yaml`), in a longer run.
Exit status 0 if every scenario that could run has a knee.
"""

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from clients import Clients
from knee import Steps, find_knee, guess_per_s, measure
from observe import Observer
from scenarios import CollectionPlan, Scenario, read
from target import Target, argument_parser, filled, machine, opened

_GUESS_S = 1.0


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--scenarios", help="names, with commas between; else all")
    parser.add_argument("--step-s", type=float, default=Steps.step_s, help="how long a rate is offered")
    parser.add_argument(
        "--confirm-s", type=float, default=Steps.confirm_s, help="how long the knee is offered"
    )
    args = parser.parse_args()
    catalogue = read(args.catalogue)
    names = args.scenarios.split(",") if args.scenarios else list(catalogue.scenarios)
    if unknown := set(names) - set(catalogue.scenarios):
        parser.error(f"no scenario {sorted(unknown)[0]}; there are {', '.join(catalogue.scenarios)}")
    wanted = {name: catalogue.scenarios[name] for name in names}
    steps = Steps(step_s=args.step_s, confirm_s=args.confirm_s)
    with opened(args) as target, Clients(args.clients) as clients:
        swept = sweep(target, clients, catalogue.collection, wanted, steps)
    if args.json:
        args.json.write_text(json.dumps(swept, indent=1) + "\n", encoding="utf-8")
    return 0 if all(scenario["knee"] for scenario in swept["scenarios"]) else 1


def sweep(
    target: Target,
    clients: Clients,
    collection: CollectionPlan,
    wanted: dict[str, Scenario],
    steps: Steps,
) -> dict[str, Any]:
    """Every scenario's steps and knee, those left out with the reason, and memory over time."""
    runnable, left_out = filled(target, collection, wanted)
    for name, reason in left_out.items():
        print(f"{name}: left out, {reason}", flush=True)
    started_s = time.monotonic()
    results = []
    with Observer(target.url, target.pid) as observer:
        for scenario in runnable.values():
            since_s = time.monotonic() - started_s
            found = _one(target, clients, collection, scenario, steps)
            results.append(found | {"from_s": since_s, "to_s": time.monotonic() - started_s})
    memory = [
        {"at_s": round(sample["at_s"] - started_s, 2)} | {k: v for k, v in sample.items() if k != "at_s"}
        for sample in observer.samples
    ]
    return {
        "machine": machine(),
        "collection": asdict(collection),
        "scenarios": results,
        "left_out": left_out,
        "memory": memory,
    }


def _one(
    target: Target, clients: Clients, collection: CollectionPlan, scenario: Scenario, steps: Steps
) -> dict[str, Any]:
    guess = guess_per_s(target, scenario, collection, _GUESS_S)
    print(f"{scenario.name}: one client at a time gets {guess:.1f} a second", flush=True)

    def at(rate_per_s: float, duration_s: float) -> dict[str, Any]:
        figures = measure(clients, target, scenario, collection, rate_per_s, duration_s)
        print(f"  {_line(figures)}", flush=True)
        return figures

    measured, knee = find_knee(guess, steps, at)
    bound = f"p99 ≤ {scenario.objective_p99_ms:g} ms"
    print(f"  → {knee['rate_per_s']:.1f} a second at {bound}" if knee else f"  → no rate keeps {bound}")
    return {"scenario": asdict(scenario), "one_client_per_s": guess, "steps": measured, "knee": knee}


def _line(figures: dict[str, Any]) -> str:
    latency = figures["rerank_ms"] or {"p50": float("nan"), "p99": float("nan")}
    verdict = "kept" if figures["passes"] else "saturated" if figures["saturated"] else "not kept"
    times = f"p50 {latency['p50']:6.1f} ms, p99 {latency['p99']:6.1f} ms"
    line = f"{figures['rate_per_s']:7.1f}/s: {times}, {verdict}"
    return line + (f", {figures['failed']} failed: {figures['reasons'][:1]}" if figures["failed"] else "")


if __name__ == "__main__":
    sys.exit(main())
