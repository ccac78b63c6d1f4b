"""Compile everything the frozen table holds for given widths and dtypes, by running it on a few tokens."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from maxsim.forward import backend, block_top_k
from maxsim.forward.choose import Choice, runs_on
from maxsim.forward.configs import configs
from maxsim.forward.launch import compilations
from maxsim.forward.rowsum import BLOCK_ROWS
from maxsim.rows import Parts, Side, masked, side

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
        scores = torch.empty(left.layout.items, right.layout.items, dtype=torch.float32, device=device)
        backend.run(choice, left, right, None, None, scores)
    block_top_k.warm(device)
    torch.cuda.synchronize(device)
    return Warmup(compilations() - before, time.perf_counter() - start)


def cases(
    dims: Sequence[int], dtypes: Sequence[torch.dtype], device: torch.device
) -> Iterator[tuple[Choice, Side, Side]]:
    """Launches that between them need every variant: (choice, queries, one document of one token)."""
    for dim in dims:
        for dtype in dtypes:
            for query_dtype in sorted({dtype, torch.float32}, key=str):
                compute = dtype if query_dtype == dtype else torch.float32
                plain = side(torch.ones(1, dim, dtype=dtype, device=device), "documents")
                mask = torch.ones(1, dtype=torch.bool, device=device)
                for right in (plain, masked(plain, mask, "document_mask")):
                    for name, config in configs(dim, compute).items():
                        if not runs_on(config, device):
                            continue
                        for form, left in _queries(dim, query_dtype, device).items():
                            # Only the larger tile takes queries of unknown length.
                            chunked = config.kernel == "short_query" and form == "unknown"
                            if form not in _FORMS[config.kernel] or (chunked and name != "short-64"):
                                continue
                            segments = 3 if form.startswith("split") else 1
                            yield (
                                Choice(name, "warm-up", config, segments, chunked, straight=True),
                                left,
                                right,
                            )


# Which forms of queries make a kernel, or the one that finishes its work, a variant of its own.
_FORMS = {
    "short_query": ("one", "unknown", "split"),
    "short_hopper": ("one", "split"),
    "long_query": ("unknown", "ragged", "ragged, some blocks", "split", "split long"),
    "hopper": (
        "one",
        "long",
        "chunks",
        "many",
        "ragged",
        "ragged, some blocks",
        "unknown",
        "split",
        "split long",
    ),
}


def _queries(dim: int, dtype: torch.dtype, device: torch.device) -> dict[str, Side]:
    index = torch.arange(2, device=device)
    row, two = (torch.ones(n, dim, dtype=dtype, device=device) for n in (1, 2))
    forms = {
        "one": Parts(row),
        "split": Parts(row),
        "chunks": Parts(torch.ones(4 * BLOCK_ROWS + 1, dim, dtype=dtype, device=device)),
        "split long": Parts(torch.ones(4 * BLOCK_ROWS + 1, dim, dtype=dtype, device=device)),
        "long": Parts(torch.ones(BLOCK_ROWS + 1, dim, dtype=dtype, device=device)),
        "many": Parts(torch.ones(2, BLOCK_ROWS // 2, dim, dtype=dtype, device=device)),
        "ragged": Parts(two, index, torch.ones_like(index), 1),
        "ragged, some blocks": Parts(two, index, torch.ones_like(index), 2 * BLOCK_ROWS),
        "unknown": Parts(two, index, torch.ones_like(index)),
    }
    return {form: side(parts, "queries") for form, parts in forms.items()}
