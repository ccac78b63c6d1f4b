"""The retriever's metrics, in one place."""

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

__all__ = ["Metrics"]

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series beside each of ours, which nobody asks for

_BUCKETS_S = tuple(1e-3 * 2**i for i in range(14))  # 1 ms … 8 s


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.searches = Counter(
            "retriever_searches_total",
            "Searches answered, by whose order they are in: reranked, or why the retriever's own.",
            ["order"],  # reranked | nothing_found | unreachable | timeout | busy | refused
            registry=self.registry,
        )
        self.failures = Counter(
            "retriever_search_failures_total", "Searches that PostgreSQL failed.", registry=self.registry
        )
        self.stage_duration = Histogram(
            "retriever_stage_duration_seconds",
            "Where a search spends its time, waits before another try included.",
            ["stage"],  # retrieve | rerank
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.retries = Counter(
            "retriever_rerank_retries_total", "Tries of a rerank after its first.", registry=self.registry
        )
        self.missing = Counter(
            "retriever_missing_ids_total",
            "Candidates that the reranker does not hold.",
            registry=self.registry,
        )
