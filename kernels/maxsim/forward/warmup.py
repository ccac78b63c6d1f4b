"""Compile everything the frozen table holds for given widths and dtypes, by running it on a few tokens."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from maxsim.forward import backend
from maxsim.forward.choose import Choice, configs, runs_on
from maxsim.forward.launch import compilations
from maxsim.rows import Parts, Side, side

__all__ = ["Warmup", "cases", "warmup"]


@dataclass(frozen=True)
class Warmup:
    """kernels: variants that were compiled; seconds: how long it took."""

    kernels: int
    seconds: float


def warmup(dims: Sequence[int], dtypes: Sequence[torch.dtype], device: torch.device) -> Warmup:
    """Compile for token widths and dtypes, both sides alike; queries in float32 against each dtype too."""
    before, start = compilations(), time.perf_counter()
    for choice, left, right in cases(dims, dtypes, device):
        scores = torch.empty(left.count, right.count, dtype=torch.float32, device=device)
        backend.run(choice, left, right, None, None, scores)
    torch.cuda.synchronize(device)
    return Warmup(compilations() - before, time.perf_counter() - start)


def cases(
    dims: Sequence[int], dtypes: Sequence[torch.dtype], device: torch.device
) -> Iterator[tuple[Choice, Side, Side]]:
    """One launch for every compiled variant: (choice, one query of one row, one document of one token)."""
    for dim in dims:
        for dtype in dtypes:
            for query_dtype in {dtype, torch.float32}:
                tokens = torch.ones(1, dim, dtype=dtype, device=device)
                left = side(Parts(torch.ones(1, dim, dtype=query_dtype, device=device)), None, "query")
                compute = dtype if query_dtype == dtype else torch.float32
                for name, config in configs(dim, compute).items():
                    if not runs_on(config, device):
                        continue
                    for masked in (False, True):
                        if masked and config.kernel == "hopper":
                            continue
                        mask = torch.ones(1, dtype=torch.bool, device=device) if masked else None
                        right = side(Parts(tokens), mask, "document")
                        for chunked in (False, True) if name == "short-64" else (False,):
                            yield Choice(name, "warm-up", config, 1, chunked), left, right
