"""Single figures from a service's /metrics."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["value"]


def value(client: httpx.Client, sample: str, **labels: str) -> float:
    """The sum of a sample over all labels but those given; 0 where there is none."""
    text = client.get("/metrics").raise_for_status().text
    return sum(
        found.value
        for family in text_string_to_metric_families(text)
        for found in family.samples
        if found.name == sample and labels.items() <= found.labels.items()
    )
