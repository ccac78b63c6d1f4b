"""Prometheus instruments that never fail their caller: what cannot be counted or read is logged and left out.

A request must not suffer from its own accounting, a scrape not from one reading that fails (a driver that
answers no more), and Prometheus not from a million collections.
"""

import logging
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Sequence

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


def _report(what: str) -> None:
    """Log the exception that is being handled, once for each `what`."""
    if what not in _reported:
        _reported.add(what)
        _log.exception("%s failed; the service goes on without it (logged once)", what)


class Counter(client.Counter):
    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        try:
            super().inc(amount, exemplar)
        except Exception:
            _report(f"counting {self._name}")


class Gauge(client.Gauge):
    def set(self, value: float) -> None:
        try:
            super().set(value)
        except Exception:
            _report(f"setting {self._name}")


class Histogram(client.Histogram):
    """Finds a bucket by halves. prometheus_client goes through all of them, which takes 10 µs a time."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        if exemplar is not None:
            super().observe(amount, exemplar)
            return
        try:
            self._sum.inc(amount)
            self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)
        except Exception:
            _report(f"observing {self._name}")

    def observe_all(self, amounts: Sequence[float]) -> None:
        """As `observe` for each of them, at little more than the price of one."""
        try:
            bounds = self._upper_bounds
            places: dict[int, int] = {}
            for amount, count in Tally(amounts).items():  # many have the same
                place = bisect_left(bounds, amount)
                places[place] = places.get(place, 0) + count
            self._sum.inc(sum(amounts))
            for place, count in places.items():
                self._buckets[place].inc(count)
        except Exception:
            _report(f"observing {self._name}")


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
        try:
            return list(self._collector.collect())
        except Exception:
            _report(f"reading {self._collector}")
            self._failures.inc()
            return []
