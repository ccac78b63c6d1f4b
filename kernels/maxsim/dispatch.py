"""(device, dtypes) → kernel, with the reason. One table, read from the top; nothing else decides."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from maxsim import cpu, cpu_native, reference
from maxsim.rows import Rows

__all__ = ["Kernel", "Plan", "decide", "kernel"]


@dataclass(frozen=True)
class Plan:
    """What runs, and why.

    kernel         name of the kernel, a key of the table below
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

    def score_rows(self, queries: Rows, documents: Rows) -> Tensor:
        """Every pair → [Nq, Nd]."""

    def score_pairs_rows(
        self, queries: Rows, documents: Rows, query_index: Tensor, document_index: Tensor
    ) -> Tensor:
        """Listed pairs → [P]."""

    def explain(self, query: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
        """query [Lq, d], document [Ld, d] → (tokens int64 [Lq], similarities [Lq])."""


@dataclass(frozen=True)
class _Row:
    kernel: str
    reason: str
    applies: Callable[[Tensor, torch.dtype], bool]


def _on_cpu(documents: Tensor) -> bool:
    return documents.device.type == "cpu"


# applies(document tokens, compute dtype); the first row that does is taken.
_TABLE = (
    _Row(
        "reference", "float64 is computed by the definition", lambda documents, dtype: dtype == torch.float64
    ),
    _Row(
        "cpu-avx2",
        "host memory, and the compiled kernel is there: fused, threads take documents from one list",
        lambda documents, dtype: _on_cpu(documents) and cpu_native.available(),
    ),
    _Row(
        "cpu",
        "host memory, no compiled kernel or no AVX2: chunks through PyTorch, one document range a thread",
        lambda documents, dtype: _on_cpu(documents),
    ),
    _Row("reference", "no kernel for this device: computed by the definition", lambda documents, dtype: True),
)

_KERNELS: dict[str, Kernel] = {"reference": reference, "cpu-avx2": cpu.compiled, "cpu": cpu.plain}


def decide(queries: Tensor, documents: Tensor) -> Plan:
    """The plan for token tensors of these devices and dtypes."""
    dtype = reference.compute_dtype(queries, documents)
    row = next(row for row in _TABLE if row.applies(documents, dtype))
    return Plan(row.kernel, row.reason, documents.device.type, dtype)


def kernel(plan: Plan) -> Kernel:
    """The kernel that a plan names."""
    return _KERNELS[plan.kernel]
