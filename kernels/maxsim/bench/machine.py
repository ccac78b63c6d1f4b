"""What a measurement was made on: the GPU, its driver, and the versions of what ran."""

import importlib.metadata
import platform
import shutil
import subprocess
from datetime import UTC, datetime

import torch

__all__ = ["versions"]


def versions() -> dict[str, str | None]:
    """gpu, driver, torch, triton, python, maxsim, the rivals and the date; None for what is not there."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _driver(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "maxsim": _version("maxsim-serve"),
        "flash-maxsim": _version("flash-maxsim"),
        "late-interaction-kernels": _version("late-interaction-kernels"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip().partition("\n")[0] or None
