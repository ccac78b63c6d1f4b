"""What a service's /metrics says at one moment."""

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Metrics", "read_metrics", "total"]

Metrics = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""(sample name, labels) → value."""


def read_metrics(client: httpx.Client) -> Metrics:
    families = text_string_to_metric_families(client.get("/metrics").raise_for_status().text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def total(metrics: Metrics, name: str, **labels: str) -> float | None:
    """A sample's sum over all labels but those given; None where there is no such sample."""
    found = [
        value for (sample, has), value in metrics.items() if sample == name and labels.items() <= set(has)
    ]
    return sum(found) if found else None
