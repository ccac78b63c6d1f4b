"""Every metric and bucket, in one place. Base units, no per-id or per-path label, one process a registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

__all__ = ["DEVICE_STAGES", "STAGES", "Metrics"]

# On a GPU these four follow each other on its stream; on a CPU there is only the kernel.
DEVICE_STAGES = ("upload", "kernel", "select", "download")
STAGES = ("parse", "encode", "queue", "lookup", "launch", *DEVICE_STAGES, "topk", "serialize")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series beside each of ours, which nobody asks for

_STAGE_BUCKETS_S = tuple(50e-6 * 2**i for i in range(18))  # 50 µs … 6.6 s
_REQUEST_BUCKETS_S = tuple(250e-6 * 2**i for i in range(17))  # 250 µs … 16 s
_COUNT_BUCKETS = tuple(float(2**i) for i in range(0, 21, 2))  # 1 … 1,048,576


class Metrics:
    """Owns one Prometheus registry; the attributes are the metrics, named without their `maxsim_` prefix."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        r = self.registry
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
        self.kernel_launches = Counter(
            "maxsim_kernel_launches_total", "Work lists scored, by kernel.", ["kernel", "dtype"], registry=r
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

        self.store_documents = Gauge(
            "maxsim_store_documents", "Documents stored.", ["collection", "tier"], registry=r
        )
        self.store_tokens = Gauge(
            "maxsim_store_tokens", "Token rows stored.", ["collection", "tier"], registry=r
        )
        self.store_bytes = Gauge(
            "maxsim_store_bytes",
            "Bytes of token rows resident, dead ones included.",
            ["collection", "tier"],
            registry=r,
        )
        self.store_dead_bytes = Gauge(
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
