"""Metrics that fail: nothing is raised, a scrape leaves out what it cannot read, series stay bounded."""

import logging
import os
import subprocess
import sys

import prometheus_client
import pytest

from maxsim_serve import instruments
from maxsim_serve.metrics import Metrics
from maxsim_serve.store import CollectionSpec, Store


class FullDisk:
    """A value that cannot be written, as one in a file of a full disk."""

    def inc(self, amount: float) -> None:
        raise OSError(28, "No space left on device")

    set = inc


@pytest.fixture(autouse=True)
def nothing_reported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "_reported", set())


def test_what_cannot_be_counted_is_logged_once_and_never_raised(caplog):
    metrics = Metrics()
    metrics.oom._value = metrics.ready._value = metrics.batch_pairs._sum = FullDisk()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            metrics.oom.inc()
            metrics.ready.set(1)
            metrics.batch_pairs.observe(5)
    assert sorted(record.getMessage().split()[1] for record in caplog.records) == [
        "maxsim_batch_pairs",
        "maxsim_oom",
        "maxsim_ready",
    ]


def test_amounts_fall_into_the_buckets_that_prometheus_client_gives_them():
    bounds = (0.001, 0.25, 1.0)
    amounts = [0.0, 0.001, 0.0011, 0.25, 0.9, 1.0, 1.5, float("inf"), -1.0, 0.25]
    theirs = prometheus_client.Histogram("h", "one by one", buckets=bounds, registry=None)
    single, together = (instruments.Histogram("h", "ours", buckets=bounds, registry=None) for _ in range(2))
    for amount in amounts:
        theirs.observe(amount)
        single.observe(amount)
    together.observe_all(amounts)

    def samples(histogram):
        (family,) = histogram.collect()
        return [(s.name, s.labels, s.value) for s in family.samples if not s.name.endswith("_created")]

    assert samples(single) == samples(together) == samples(theirs)
    assert len(samples(theirs)) == 6


def test_a_reading_that_fails_is_left_out_of_the_scrape_and_counted(caplog):
    def unreadable() -> float:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    metrics = Metrics()
    metrics.queue_depth.set_function(unreadable)
    with caplog.at_level(logging.ERROR):
        names = {family.name for family in metrics.registry.collect()}
        assert {family.name for family in metrics.registry.collect()} == names
    assert "maxsim_queue_depth" not in names
    assert {"maxsim_ready", "maxsim_http_requests", "maxsim_queue_oldest_age_seconds"} <= names
    assert metrics.registry.get_sample_value("maxsim_metric_failures_total") >= 2
    assert len(caplog.records) == 1
    assert "illegal memory access" in caplog.text


def test_collections_past_the_first_hundred_share_a_series(tmp_path):
    metrics = Metrics()
    options = {"segment_bytes": 1 << 16, "compact_dead_share": 0.5, "budget_bytes": 1 << 28}
    for _ in range(2):  # after a restart, too
        metrics = Metrics()
        with Store.open(tmp_path, metrics=metrics, **options) as store:
            for i in range(130):
                there = store.create_collection(CollectionSpec(f"c{i}", 16, "float32", normalize=False))
            assert there.info().documents == 0
            metrics.store_documents.labels("c120", "host").set(7)
            metrics.store_documents.labels("c121", "host").set(5)
            (family,) = metrics.store_documents.collect()
            assert len(family.samples) == 101
            shown = {sample.labels["collection"]: sample.value for sample in family.samples}
            assert shown["(other)"] == 12
            assert "c99" in shown and "c100" not in shown


def test_a_directory_for_metrics_that_cannot_be_written_hinders_nothing(tmp_path):
    """prometheus_client would keep its values there, and fail when it is no directory."""
    (tmp_path / "file").write_text("")
    program = (
        "from maxsim_serve.metrics import Metrics; from prometheus_client import generate_latest;"
        "m = Metrics(); m.rejected.labels('queue_full').inc(); print(generate_latest(m.registry).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "file")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert 'maxsim_rejected_total{reason="queue_full"} 1.0' in done.stdout
