"""Prometheus instruments that never fail their caller: what cannot be counted or read is logged and left out.

A request must not suffer from its own accounting, a scrape not from one reading that fails (a driver that
answers no more), and Prometheus not from a million collections.
"""

import logging
from collections.abc import Callable, Iterable

import prometheus_client as client
from prometheus_client import values
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

__all__ = ["CollectionGauge", "Counter", "Gauge", "Histogram", "Registry"]

_log = logging.getLogger(__name__)

# One process a registry, in memory. Where PROMETHEUS_MULTIPROC_DIR is set, prometheus_client would keep every
# value in a file there, and refuse to start, or to count, where that cannot be written.
values.ValueClass = values.MutexValue

_MOST_COLLECTIONS = 100
_OTHER = "(other)"  # no collection can be called so

_reported: set[str] = set()


def _unless_it_fails(what: str, act: Callable[[], object]) -> bool:
    """Do it; a failure is logged, once for each `what`. Whether it succeeded."""
    try:
        act()
    except Exception:
        if what not in _reported:
            _reported.add(what)
            _log.exception("%s failed; the service goes on without it (logged once)", what)
        return False
    return True


class Counter(client.Counter):
    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        _unless_it_fails(f"counting {self._name}", lambda: super(Counter, self).inc(amount, exemplar))


class Gauge(client.Gauge):
    def set(self, value: float) -> None:
        _unless_it_fails(f"setting {self._name}", lambda: super(Gauge, self).set(value))


class Histogram(client.Histogram):
    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        _unless_it_fails(f"observing {self._name}", lambda: super(Histogram, self).observe(amount, exemplar))


class CollectionGauge(Gauge):
    """A gauge by `collection` and `tier`. Past the first 100 collections, in the order of their creation,
    the rest is added up under `(other)`: collections are made by clients, and series must stay bounded.
    """

    def collect(self) -> Iterable[Metric]:
        for family in super().collect():
            named = list(dict.fromkeys(sample.labels["collection"] for sample in family.samples))
            shown = set(named[:_MOST_COLLECTIONS])
            folded = Metric(family.name, family.documentation, family.type)
            rest: dict[str, float] = {}
            for sample in family.samples:
                if sample.labels["collection"] in shown:
                    folded.add_sample(sample.name, sample.labels, sample.value)
                else:
                    tier = sample.labels["tier"]
                    rest[tier] = rest.get(tier, 0.0) + sample.value
            for tier, value in rest.items():
                folded.add_sample(family.name, {"collection": _OTHER, "tier": tier}, value)
            yield folded


class Registry(client.CollectorRegistry):
    """A registry whose scrape leaves out what cannot be read, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self._failures = Counter(
            "maxsim_metric_failures_total", "Metrics that a scrape could not read.", registry=None
        )
        super().register(self._failures)

    def register(self, collector: Collector) -> None:
        super().register(_Readable(collector, self._failures))


class _Readable:
    """A collector whose failure is an empty answer."""

    def __init__(self, collector: Collector, failures: Counter) -> None:
        self._collector = collector
        self._failures = failures

    def describe(self) -> Iterable[Metric]:
        describe = getattr(self._collector, "describe", None)
        return describe() if describe is not None else []

    def collect(self) -> Iterable[Metric]:
        families: list[Metric] = []
        if not _unless_it_fails(
            f"reading {self._collector}", lambda: families.extend(self._collector.collect())
        ):
            self._failures.inc()
            return []
        return families
