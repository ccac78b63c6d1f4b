"""The service under load: one of our own on this machine, or one that runs already."""

import argparse
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from passages import fill
from scenarios import FILE, CollectionPlan, Scenario, collection_of

from maxsim_serve.cli.local import LocalService
from maxsim_serve.cli.scrape import read_metrics

__all__ = ["Target", "argument_parser", "filled", "machine", "opened"]


@dataclass(frozen=True)
class Target:
    """`pid` is None where the service is not a process of this machine."""

    url: str
    pid: int | None

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Which service, which clients and scenarios, and where the figures go: what every load test is told."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url",
        help="a service on this machine that runs already, as http://127.0.0.1:PORT; else one is started. "
        "Collections load-host and load-gpu are created in it",
    )
    parser.add_argument("--pid", type=int, help="its process id, for its memory and processor time")
    parser.add_argument("--clients", type=int, default=1, help="client processes that take turns")
    parser.add_argument("--catalogue", type=Path, default=FILE, help="YAML file of scenarios")
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Target]:
    if args.url is not None:
        yield Target(args.url, args.pid)
        return
    with LocalService(encoder="none", on_wait=lambda _: None) as service:
        yield Target(service.url, service.pid)


def filled(
    target: Target, collection: CollectionPlan, scenarios: Mapping[str, Scenario]
) -> tuple[dict[str, Scenario], dict[str, str]]:
    """Fill a collection for each tier; the scenarios that can run, and for the others the reason why not."""
    reasons: dict[str, str] = {}
    with httpx.Client(base_url=target.url, timeout=300) as client:
        for tier in sorted({scenario.tier for scenario in scenarios.values()}):
            name = collection_of(tier)
            if reason := _refused(client, name, tier, collection.dim):
                reasons[tier] = reason
                continue
            fill(
                client,
                name,
                collection.documents,
                collection.dim,
                mean_tokens=collection.mean_tokens,
                tier=tier,
            )
    runnable = {name: scenario for name, scenario in scenarios.items() if scenario.tier not in reasons}
    left_out = {
        name: reasons[scenario.tier] for name, scenario in scenarios.items() if scenario.tier in reasons
    }
    return runnable, left_out


def _refused(client: httpx.Client, name: str, tier: str, dim: int) -> str | None:
    """Why a collection cannot be in a tier, tried with one document; None if it can."""
    created = client.put(f"/collections/{name}", json={"dim": dim, "dtype": "float16", "tier": tier})
    if created.status_code == 422:
        return f"the service refuses tier {tier}: {created.json()['message']}"
    created.raise_for_status()
    document = {"id": "passage-0", "vectors": [[1.0] + [0.0] * (dim - 1)]}
    client.put(f"/collections/{name}/documents", json={"documents": [document]}).raise_for_status()
    labels = [dict(labels) for sample, labels in read_metrics(client) if sample == "maxsim_store_documents"]
    found = sorted({label["tier"] for label in labels if label["collection"] == name})
    if tier in found:
        return None
    client.delete(f"/collections/{name}").raise_for_status()
    return f"the service keeps the collection in tier {' and '.join(found)}, not {tier}"


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
