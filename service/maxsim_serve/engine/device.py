"""The device to score on: which one, its kernels compiled before the first request, its memory in use."""

import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import maxsim

from ..errors import InvalidInput
from ..metrics import Metrics
from .gpu import GpuScorer
from .scan import SCAN_BYTES, ScanningScorer
from .scorer import Scorer
from .worklist import CpuScorer

__all__ = ["WORKSPACE_BYTES", "Device", "choose_device", "make_scorer", "use_kernel_cache", "warm_up"]

_log = logging.getLogger(__name__)

# What is compiled for before anything is stored: most models' width, and the probe's and inline documents'.
_DEFAULT_KINDS = ((128, torch.float16), (128, torch.float32))

WORKSPACE_BYTES = (2 << 30) + SCAN_BYTES
"""What a batch may need beside the store: its upload, partial maxima, scores; the blocks of a scan."""


@dataclass(frozen=True)
class Device:
    """`fallback`: a GPU would have been taken, but none could be. `reason` is for /info and the log."""

    device: torch.device
    reason: str
    fallback: bool = False


def choose_device(asked: Literal["auto", "cpu", "cuda"]) -> Device:
    """Raises `InvalidInput` for a GPU that is asked for and not to be had."""
    if asked == "cpu":
        return Device(torch.device("cpu"), "asked for")
    missing = _missing()
    if missing is None:
        device = torch.device("cuda", torch.cuda.current_device())
        return Device(device, f"{asked}: {torch.cuda.get_device_name(device)}")
    if asked == "cuda":
        raise InvalidInput(
            f"device = cuda: {missing}; check the driver, CUDA_VISIBLE_DEVICES and the installed torch, "
            "or set device to auto or cpu",
            param="device",
        )
    return Device(torch.device("cpu"), f"auto: {missing}", fallback=True)


def _missing() -> str | None:
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA GPU"
    if importlib.util.find_spec("triton") is None:
        return "there is a CUDA GPU, but Triton is not installed"
    return None


def make_scorer(
    device: torch.device, query_dtype: Literal["stored", "float32"], store_bytes: int, metrics: Metrics
) -> Scorer:
    """What scores on this device; on a GPU, its memory is shown in the metrics from now on.

    `store_bytes` are those that the store has taken on the device, through PyTorch's allocator.
    """
    if device.type == "cpu":
        return CpuScorer()
    scorer = ScanningScorer(GpuScorer(device, query_dtype))
    metrics.gpu_memory_total.set(torch.cuda.mem_get_info(device)[1])
    metrics.gpu_memory.labels("store").set(store_bytes)
    metrics.gpu_memory.labels("staging").set_function(lambda: float(scorer.staging_bytes))
    metrics.gpu_memory.labels("workspace").set_function(
        lambda: float(torch.cuda.memory_reserved(device) - scorer.staging_bytes - store_bytes)
    )
    metrics.gpu_memory.labels("other").set_function(lambda: float(_outside_bytes(device)))
    return scorer


def _outside_bytes(device: torch.device) -> int:
    """Device memory in use that PyTorch's allocator does not know of: contexts, code, other processes."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def warm_up(device: torch.device, kinds: Iterable[tuple[int, torch.dtype]], metrics: Metrics) -> None:
    """Compile all kernels for stored (width, dtype) kinds, and count them; a CPU has nothing to compile."""
    if device.type == "cpu":
        # The first scores start the thread pool and let the matrix library choose its code.
        maxsim.score(torch.randn(32, 128), torch.randn(4, 64, 128))
        return
    dims: dict[torch.dtype, set[int]] = {}
    for dim, dtype in (*_DEFAULT_KINDS, *kinds):
        dims.setdefault(dtype, set()).add(dim)
        # Documents that come with a request are float32.
        dims.setdefault(torch.float32, set()).add(dim)
    before = maxsim.compilations()
    for dtype, widths in dims.items():
        warmed = maxsim.warmup(sorted(widths), [dtype], device=device)
        _log.info("compiled %d kernels for %s, widths %s, in %.1f s",
                  warmed.kernels, dtype, sorted(widths), warmed.seconds)  # fmt: skip
    metrics.kernel_compilations.labels("warmup").inc(maxsim.compilations() - before)
    from . import carry  # which imports Triton

    carry.warm_up(device)


def use_kernel_cache(directory: Path | None) -> None:
    """Let Triton keep compiled kernels in `directory` (None: its own), set before any is compiled.

    Processes may share one. The kernels of one that cannot be written are copied to a temporary directory.
    """
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        own = Path(tempfile.mkdtemp(prefix="maxsim-kernels-"))
        if directory.is_dir():
            shutil.copytree(directory, own, dirs_exist_ok=True)
        _log.warning("kernel_cache_dir = %s cannot be written (%s): using %s", directory, error.strerror, own)
        directory = own
    os.environ["TRITON_CACHE_DIR"] = str(directory)
