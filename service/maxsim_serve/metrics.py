"""Every metric and bucket, in one place. Base units, no per-id or per-path label, one process a registry."""

from functools import cache

from prometheus_client import disable_created_metrics

from .instruments import CollectionGauge, Counter, Gauge, Histogram, Registry

__all__ = ["DEVICE_STAGES", "STAGES", "Metrics"]

# On a GPU these four follow each other on its stream; on a CPU there is only the kernel.
DEVICE_STAGES = ("upload", "kernel", "select", "download")
STAGES = ("parse", "encode", "queue", "lookup", "launch", *DEVICE_STAGES, "topk", "serialize")

_REJECTIONS = ("queue_full", "deadline", "draining", "abandoned")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series beside each of ours, which nobody asks for


def _ten_a_decade(first_exponent: int, decades: int) -> tuple[float, ...]:
    """From 10^first_exponent seconds on, in steps of about 1.26 (the preferred numbers R10).

    A quantile is interpolated within its bucket, so this is what it can be wrong by: 13 % where all that it
    is read from falls into one bucket, and 26 % at the very worst.
    """
    steps = (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
    decade = range(first_exponent, first_exponent + decades)
    return (
        *(float(f"{step}e{exponent}") for exponent in decade for step in steps),
        10.0 ** (first_exponent + decades),
    )


_STAGE_BUCKETS_S = _ten_a_decade(-5, 6)  # 10 µs … 10 s
_REQUEST_BUCKETS_S = (*_ten_a_decade(-4, 5), 16.0, 31.5)  # 100 µs … 31.5 s
_COUNT_BUCKETS = tuple(float(2**i) for i in range(0, 21, 2))  # 1 … 1,048,576


class Metrics:
    """Owns one Prometheus registry; the attributes are the metrics, named without their `maxsim_` prefix."""

    def __init__(self) -> None:
        self.registry = r = Registry()
        self.build_info = Gauge(
            "maxsim_build_info",
            "Constant 1; the labels say what runs.",
            ["version", "torch", "device"],
            registry=r,
        )
        self.ready = Gauge("maxsim_ready", "1 while the service answers requests.", registry=r)

        self.http_requests = Counter(
            "maxsim_http_requests_total", "Requests answered.", ["route", "method", "code"], registry=r
        )
        self.http_request_duration = Histogram(
            "maxsim_http_request_duration_seconds",
            "From the request line to the last byte of the answer.",
            ["route"],
            buckets=_REQUEST_BUCKETS_S,
            registry=r,
        )
        self.stage_duration = Histogram(
            "maxsim_stage_duration_seconds",
            "Where a rerank or search spends its time.",
            ["stage"],
            buckets=_STAGE_BUCKETS_S,
            registry=r,
        )
        self.stage_of = cache(self.stage_duration.labels)
        """A stage's own histogram; to look one up by its label takes longer than to observe."""
        for stage in STAGES:  # all from 0 on
            self.stage_of(stage)
        self.rerank_candidates = Histogram(
            "maxsim_rerank_candidates", "Candidates scored per request.", buckets=_COUNT_BUCKETS, registry=r
        )
        self.missing_ids = Counter(
            "maxsim_missing_ids_total", "Candidate ids that are not stored.", registry=r
        )

        self.batch_requests = Histogram(
            "maxsim_batch_requests", "Requests scored as one work list.", buckets=_COUNT_BUCKETS, registry=r
        )
        self.batch_pairs = Histogram(
            "maxsim_batch_pairs",
            "(query, document) pairs in one work list.",
            buckets=_COUNT_BUCKETS,
            registry=r,
        )
        self.queue_depth = Gauge("maxsim_queue_depth", "Requests waiting to be scored.", registry=r)
        self.queue_oldest_age = Gauge(
            "maxsim_queue_oldest_age_seconds", "How long the oldest waiting request has waited.", registry=r
        )
        self.rejected = Counter(
            "maxsim_rejected_total", "Requests given up before they were scored.", ["reason"], registry=r
        )
        for reason in _REJECTIONS:  # from 0 on, or their first increase would be seen by no rate()
            self.rejected.labels(reason)
        self.deadline = Gauge(
            "maxsim_deadline_seconds", "How long a request may wait (setting deadline_s).", registry=r
        )
        self.kernel_launches = Counter(
            "maxsim_kernel_launches_total", "Work lists scored, by kernel.", ["kernel", "dtype"], registry=r
        )
        self.graph_replays = Counter(
            "maxsim_graph_replays_total", "Requests scored by replaying a CUDA graph.", registry=r
        )
        self.kernel_compilations = Counter(
            "maxsim_kernel_compilations_total",
            "Kernel variants compiled, or loaded from the cache on disk.",
            ["phase"],
            registry=r,
        )
        self.device_fallback = Gauge(
            "maxsim_device_fallback",
            "1 where device = auto found no GPU that could be used, and scores on the CPU.",
            registry=r,
        )
        self.gpu_memory = Gauge(
            "maxsim_gpu_memory_bytes", "Device memory in use, by purpose.", ["purpose"], registry=r
        )
        self.gpu_memory_total = Gauge(
            "maxsim_gpu_memory_total_bytes", "Memory that the device has.", registry=r
        )
        self.stream_bytes = Counter(
            "maxsim_stream_bytes_total",
            "Bytes that batches copied to the device (up) and back (down).",
            ["direction"],
            registry=r,
        )
        self.stream_busy = Counter(
            "maxsim_stream_busy_seconds_total", "Time that batches took on the device.", registry=r
        )
        for phase in ("warmup", "live"):
            self.kernel_compilations.labels(phase)
        self.oom = Counter("maxsim_oom_total", "Requests that failed for lack of memory.", registry=r)

        self.store_documents = CollectionGauge(
            "maxsim_store_documents", "Documents stored.", ["collection", "tier"], registry=r
        )
        self.store_tokens = CollectionGauge(
            "maxsim_store_tokens", "Token rows stored.", ["collection", "tier"], registry=r
        )
        self.store_bytes = CollectionGauge(
            "maxsim_store_bytes",
            "Bytes of token rows resident, dead ones included.",
            ["collection", "tier"],
            registry=r,
        )
        self.store_dead_bytes = CollectionGauge(
            "maxsim_store_dead_bytes",
            "Of those, bytes that compaction would free.",
            ["collection", "tier"],
            registry=r,
        )
        self.store_capacity_bytes = Gauge(
            "maxsim_store_capacity_bytes", "The budget for resident token rows.", ["tier"], registry=r
        )
        self.store_mutations = Counter(
            "maxsim_store_mutations_total", "Documents written or deleted.", ["op", "outcome"], registry=r
        )
        self.store_compactions = Counter("maxsim_store_compactions_total", "Segments rewritten.", registry=r)
        self.encoded_texts = Counter("maxsim_encoded_texts_total", "Texts encoded.", ["kind"], registry=r)
        self.encode_tokens = Counter(
            "maxsim_encode_tokens_total", "Token rows encoded.", ["kind"], registry=r
        )
        self.start_duration = Gauge(
            "maxsim_start_duration_seconds", "From start to ready: open, load, warm up.", registry=r
        )
