"""Operands → kernel, with the reason: one table of devices, read from the top. A GPU's is `forward.choose`.

Nothing here imports Triton unless an operand lies on a GPU.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from maxsim import cpu, cpu_native, reference
from maxsim.rows import MOST_REMEMBERED, Layout, Side

__all__ = ["Kernel", "Plan", "decide", "kernel"]


@dataclass(frozen=True)
class Plan:
    """What runs, and why.

    kernel         name of the kernel
    reason         one sentence for a log or a person
    device         type of the device it runs on
    compute_dtype  dtype of products, maxima, sums and scores
    """

    kernel: str
    reason: str
    device: str
    compute_dtype: torch.dtype


class Kernel(Protocol):
    """What every backend offers, on operands already read."""

    def all_pairs(self, left: Side, right: Side) -> Tensor:
        """Every pair → [Nq, Nd]."""

    def listed_pairs(self, left: Side, right: Side, query_index: Tensor, document_index: Tensor) -> Tensor:
        """Listed pairs → [P]."""

    def explain(self, query: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
        """query [Lq, d], document [Ld, d] → (tokens int64 [Lq], similarities [Lq])."""


@dataclass(frozen=True)
class _Row:
    kernel: str
    reason: str
    applies: Callable[[torch.device, torch.dtype], bool]


@cache
def _on_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


@cache
def _on_gpu(device: torch.device) -> bool:
    return device.type == "cuda" and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


# applies(device, compute dtype); the first row that does is taken.
_TABLE = (
    _Row("reference", "float64 is computed by the definition", lambda device, dtype: dtype == torch.float64),
    _Row("triton", "chosen by shape", lambda device, dtype: _on_gpu(device)),
    _Row(
        "cpu-avx2",
        "host memory, and the compiled kernel is there: fused, threads take documents from one list",
        lambda device, dtype: _on_cpu(device) and cpu_native.available(),
    ),
    _Row(
        "cpu",
        "host memory, no compiled kernel or no AVX2: chunks through PyTorch, one document range a thread",
        lambda device, dtype: _on_cpu(device),
    ),
    _Row("reference", "no kernel for this device: computed by the definition", lambda device, dtype: True),
)


def decide(left: Side, right: Side, pairs: int | None = None) -> Plan:
    """The plan for all pairs of two sides, or for a work list of so many."""
    dtype = reference.compute_dtype(left.layout, right.layout)
    device = right.layout.device
    row = _row(device, dtype)
    if row.kernel != "triton":
        return Plan(row.kernel, row.reason, device.type, dtype)
    chosen = _choices().choose(left, right, pairs)
    return _remembered(chosen.name, chosen.reason, device.type, dtype)


@lru_cache(MOST_REMEMBERED)
def _remembered(*plan: Any) -> Plan:
    return Plan(*plan)


def kernel(queries: Tensor | Layout, documents: Tensor | Layout) -> Kernel:
    """The backend for tokens of these devices and dtypes."""
    name = _row(documents.device, reference.compute_dtype(queries, documents)).kernel
    return _triton() if name == "triton" else _KERNELS[name]


@cache
def _choices() -> Any:
    """The table for GPUs; imported once, as looking for it takes a call 0.5 µs."""
    from maxsim.forward import choose

    return choose


@cache
def _triton() -> Kernel:
    from maxsim.forward import backend

    return backend


_KERNELS: dict[str, Kernel] = {"reference": reference, "cpu-avx2": cpu.compiled, "cpu": cpu.plain}


def _row(device: torch.device, dtype: torch.dtype) -> _Row:
    for row in _TABLE:
        if row.applies(device, dtype):
            return row
    raise AssertionError("the last row applies to everything")
