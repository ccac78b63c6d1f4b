"""MaxSim as people write it in PyTorch: the whole similarity tensor, then its maxima, then their sum."""

from collections.abc import Callable

import torch
from torch import Tensor

from maxsim.bench.ceilings import float32_products
from maxsim.bench.work import Work

__all__ = ["half", "spellings"]


def half(query: Tensor, documents: Tensor) -> Tensor:
    """query [Lq, d], documents [Nd, Ld, d] in half precision → float32 [Nd]; similarities rounded to half."""
    return torch.einsum("qd,nld->nql", query, documents).amax(dim=2).sum(dim=1, dtype=torch.float32)


def spellings(work: Work) -> dict[str, Callable[[], Tensor]]:
    """Three ways to score one query against dense documents.

    'matched precision' computes and keeps the similarities in float32; its operands are converted outside the
    clock, and it may use TF32, which keeps all the bits of float16 products' operands.
    """
    query, documents = work.queries[0], work.padded
    query32, documents32 = query.float(), documents.float()
    compiled = torch.compile(half, dynamic=False)

    def matched() -> Tensor:
        with float32_products("high"):
            return torch.einsum("qd,nld->nql", query32, documents32).amax(dim=2).sum(dim=1)

    return {
        "naive, matched precision": matched,
        "naive fp16": lambda: half(query, documents),
        "torch.compile": lambda: compiled(query, documents),
    }
