"""Single figures from a service's /metrics."""

from collections.abc import Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["value", "values"]


def value(client: httpx.Client, sample: str, **labels: str) -> float:
    """The sum of a sample over all labels but those given; 0 where there is none."""
    return values(client, (sample,), **labels)[0]


def values(client: httpx.Client, samples: Sequence[str], **labels: str) -> list[float]:
    """The same of several samples, of one moment."""
    text = client.get("/metrics").raise_for_status().text
    sums = dict.fromkeys(samples, 0.0)
    for family in text_string_to_metric_families(text):
        for found in family.samples:
            if found.name in sums and labels.items() <= found.labels.items():
                sums[found.name] += found.value
    return list(sums.values())
