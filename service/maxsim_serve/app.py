"""The composition root: builds store, encoder, engine and API from settings, and takes them down again.

The port opens at once. While the store loads, `/livez` answers and everything else is a 503 that says so;
then the real application takes its place.
"""

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from starlette.types import ASGIApp, Receive, Scope, Send
from tqdm import tqdm

import maxsim

from . import __version__
from .api import ApiDeps, Limits, build_api, build_starting_api
from .encode import EncodeWorker, load
from .engine import (
    WORKSPACE_BYTES,
    Engine,
    Scorer,
    choose_device,
    make_scorer,
    use_kernel_cache,
    warm_up,
)
from .errors import DeviceLost
from .log import RequestLog
from .metrics import Metrics
from .record import Observer
from .settings import Settings
from .store import Store, gpu_tiers, plan_gpu
from .tracing import Tracer

__all__ = ["Service"]

_log = logging.getLogger(__name__)

_GC_THRESHOLD = 50_000


@dataclass(frozen=True)
class _Parts:
    """What a ready service consists of."""

    store: Store
    encoder: EncodeWorker | None
    engine: Engine
    api: ASGIApp


class Service:
    """The ASGI application, from the first byte of start-up to the last of shutdown.

    `on_failure` is called, on the event loop, when start-up fails or the device is lost; the error stays
    in `failure`.
    """

    def __init__(self, settings: Settings, on_failure: Callable[[], None]) -> None:
        self._settings = settings
        self._device = choose_device(settings.device)
        use_kernel_cache(settings.kernel_cache_dir)
        self._metrics = Metrics()
        self._metrics.device_fallback.set(self._device.fallback)
        _log.log(
            logging.WARNING if self._device.fallback else logging.INFO,
            "scoring on %s (%s)", self._device.device, self._device.reason,
        )  # fmt: skip
        self._metrics.deadline.set(settings.deadline_s)
        self._tracer = Tracer(settings.otlp_endpoint, __version__) if settings.otlp_endpoint else None
        self._on_failure = on_failure
        self._starting = build_starting_api(
            self._metrics, metrics_open=settings.api_key is None or settings.metrics_public
        )
        self._parts: _Parts | None = None
        self._opening: asyncio.Task[None] | None = None
        self._drained: asyncio.Task[bool] | None = None
        self._draining = False
        self.failure: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await (self._parts.api if self._parts is not None else self._starting)(scope, receive, send)

    def start_draining(self) -> None:
        """Be no longer ready and queue nothing more; what is queued is finished. On the event loop."""
        self._draining = True
        if self._parts is not None and self._drained is None:
            drain = self._parts.engine.drain(self._settings.drain_timeout_s)
            self._drained = asyncio.create_task(drain)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._opening = asyncio.create_task(self._open())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _open(self) -> None:
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        try:
            # The store needs no event loop, and reading it takes as long as the disk does.
            store, encoder, scorer = await asyncio.to_thread(self._load)
        except Exception as error:
            self.failure = error
            self._on_failure()
            return

        def on_fault(fault: DeviceLost) -> None:
            loop.call_soon_threadsafe(lambda: self._lose(fault))

        engine = Engine(
            queue_depth=self._settings.queue_depth,
            max_batch_tokens=self._settings.max_batch_tokens,
            retry_after_s=self._settings.retry_after_s,
            metrics=self._metrics,
            scorer=scorer,
            on_fault=on_fault,
            # On a CPU the cores are what scores.
            awake_s=self._settings.awake_s if self._device.device.type == "cuda" else 0.0,
        )
        engine.start()
        self._parts = _Parts(store, encoder, engine, build_api(self._deps(store, encoder, engine)))
        self._metrics.build_info.labels(__version__, torch.__version__, self._device.device.type).set(1)
        self._metrics.start_duration.set(time.perf_counter() - started)
        self._metrics.ready.set_function(lambda: float(self._readiness()[0]))
        # Millions of ids must not be walked by the garbage collector while a request waits, and a request
        # makes thousands of objects that need no collector.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        _log.info("ready after %.1f s: %s", time.perf_counter() - started, _summary(store))

    def _lose(self, fault: DeviceLost) -> None:
        self.failure = fault
        self._on_failure()

    def _load(self) -> tuple[Store, EncodeWorker | None, Scorer]:
        settings = self._settings
        torch.set_num_threads(settings.threads or len(os.sched_getaffinity(0)))
        budget_bytes = settings.host_budget_bytes or int(0.7 * _memory_bytes())
        device = self._device.device
        tiers = None
        if device.type == "cuda":
            free_bytes, total_bytes = torch.cuda.mem_get_info(device)
            plan = plan_gpu(
                total_bytes=total_bytes,
                free_bytes=free_bytes,
                budget_bytes=settings.gpu_budget_bytes,
                workspace_bytes=WORKSPACE_BYTES,
                encoder_bytes=0,  # encoders run on the CPU
            )
            tiers = gpu_tiers(
                device,
                host_budget_bytes=budget_bytes,
                gpu_budget_bytes=plan.store_bytes,
                segment_bytes=settings.segment_bytes,
            )
        with tqdm(unit="B", unit_scale=True, desc="load", disable=None, leave=False) as bar:

            def show(loaded_bytes: int, total_bytes: int) -> None:
                bar.total = total_bytes
                bar.update(loaded_bytes - bar.n)

            store = Store.open(
                settings.data_dir,
                segment_bytes=settings.segment_bytes,
                compact_dead_share=settings.compact_dead_share,
                budget_bytes=budget_bytes,
                tiers=tiers,
                tier=settings.tier,
                metrics=self._metrics,
                on_progress=show,
            )
        try:
            encoder = load(settings.encoder)
            specs = [collection.spec for collection in store.collections()]
            store_bytes = tiers["gpu"].memory.size_bytes if tiers is not None else 0
            scorer = make_scorer(device, settings.query_dtype, store_bytes, self._metrics)
            warm_up(device, {(spec.dim, spec.torch_dtype) for spec in specs}, self._metrics)
        except BaseException:
            store.close()
            raise
        return store, None if encoder is None else EncodeWorker(encoder, self._metrics), scorer

    async def _close(self) -> None:
        if self._opening is not None:
            await self._opening
        self.start_draining()
        if self._parts is None or self._drained is None:
            return
        if not await self._drained:
            _log.warning("drain_timeout_s = %s passed with work left", self._settings.drain_timeout_s)
        if self._parts.encoder is not None:
            self._parts.encoder.close()
        await asyncio.to_thread(self._parts.store.close)
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        _log.info("stopped")

    def _deps(self, store: Store, encoder: EncodeWorker | None, engine: Engine) -> ApiDeps:
        s = self._settings
        return ApiDeps(
            store=store,
            engine=engine,
            encoder=encoder,
            metrics=self._metrics,
            limits=Limits(
                max_body_bytes=s.max_body_bytes,
                max_candidates=s.max_candidates,
                max_query_tokens=s.max_query_tokens,
                max_document_tokens=s.max_document_tokens,
                max_documents_per_upsert=s.max_documents_per_upsert,
                max_top_k=s.max_top_k,
                deadline_s=s.deadline_s,
                retry_after_s=s.retry_after_s,
                max_concurrent_uploads=s.max_concurrent_uploads,
            ),
            api_key=s.api_key,
            metrics_public=s.metrics_public,
            default_collection=s.default_collection,
            invalid_documents=s.invalid_documents,
            model_name=encoder.name if encoder is not None else "none",
            version=__version__,
            is_ready=self._readiness,
            probe=partial(engine.probe, s.probe_after_s),
            describe=self._describe,
            observers=self._observers(),
        )

    def _observers(self) -> list[Observer]:
        log = RequestLog(slow_s=self._settings.slow_request_s, every=self._settings.log_requests)
        # The tracer first: it gives the log's lines their trace ids.
        return [log] if self._tracer is None else [self._tracer, log]

    def _readiness(self) -> tuple[bool, str]:
        if self._draining:
            return False, "draining"
        if self._parts is None or not self._parts.engine.ready:
            return False, "the engine does not run"
        return True, "ready"

    def _describe(self) -> dict[str, object]:
        shown = self._settings.model_dump(mode="json", exclude={"api_key"})
        example = torch.zeros(32, 128, device=self._device.device)
        plan = maxsim.plan(example, example)
        return {
            "device": self._device.device.type,
            "device_reason": self._device.reason,
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            "plan": {"kernel": plan.kernel, "reason": plan.reason},
            "settings": shown,
        }


def _summary(store: Store) -> str:
    infos = [collection.info() for collection in store.collections()]
    documents, tokens = sum(i.documents for i in infos), sum(i.tokens for i in infos)
    return f"{len(infos)} collections, {documents} documents, {tokens} tokens"


def _memory_bytes() -> int:
    """Memory this process may use: the machine's, or the container's where that is less."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else "max"
    return installed if text == "max" else min(installed, int(text))
