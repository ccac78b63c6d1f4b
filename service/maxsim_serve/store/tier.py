"""A tier: one memory with its budget and free list, seen as tables of token rows."""

from contextlib import AbstractContextManager

import numpy as np
import torch

from .extents import Extent, Extents
from .memory import Bytes, HostMemory, Memory
from .space import Budget

__all__ = ["Table", "Tier", "host_tier"]

_SPARE_BYTES = 64 << 20  # of addresses: for compaction, and rows that readers alone still hold


class Tier:
    """`budget` counts committed rows and refuses those past it; `extents` are where they are in `memory`."""

    def __init__(self, name: str, memory: Memory, budget: Budget) -> None:
        self.name = name
        self.memory = memory
        self.budget = budget
        self.extents = Extents(memory, budget.setting)
        self._tables: dict[tuple[int, torch.dtype], Table] = {}

    def table(self, dim: int, dtype: torch.dtype) -> "Table":
        """The same object each time, so that collections of one kind share one base tensor."""
        return self._tables.setdefault((dim, dtype), Table(self, dim, dtype))


class Table:
    """A tier's memory as rows of one width and dtype, the whole of it: row r is at byte r · row_bytes.

    `tokens` [R, dim] is what a kernel is given. `host_tokens` are the same rows as a tensor of host memory,
    None where they are on the device alone.
    """

    def __init__(self, tier: Tier, dim: int, dtype: torch.dtype) -> None:
        self.tier = tier
        self.row_bytes = dim * dtype.itemsize
        whole = tier.memory.size_bytes // self.row_bytes * self.row_bytes
        memory = tier.memory
        self.tokens = memory.kernel_bytes[:whole].view(dtype).view(-1, dim)
        self.host_tokens: torch.Tensor | None = None
        if memory.host_bytes is memory.kernel_bytes:
            self.host_tokens = self.tokens
        elif memory.host_bytes is not None:
            self.host_tokens = memory.host_bytes[:whole].view(dtype).view(-1, dim)

    def take(self, least_rows: int, most_rows: int) -> Extent:
        """An extent that begins and ends with a row. Raises OutOfSpace."""
        width = self.row_bytes
        return self.tier.extents.take(least_rows * width, most_rows * width, width)

    def landing(self, first_row: int, rows: int) -> AbstractContextManager[Bytes]:
        return self.tier.memory.landing(first_row * self.row_bytes, (first_row + rows) * self.row_bytes)

    def write(self, first_row: int, packed: Bytes) -> None:
        with self.landing(first_row, len(packed) // self.row_bytes) as out:
            np.copyto(out, packed)

    def read(self, first_row: int, rows: int) -> Bytes:
        """The bytes of these rows; to be read only."""
        return self.tier.memory.read(first_row * self.row_bytes, (first_row + rows) * self.row_bytes)


def host_tier(budget_bytes: int) -> Tier:
    memory = HostMemory(budget_bytes + budget_bytes // 2 + _SPARE_BYTES)
    return Tier("host", memory, Budget(budget_bytes, "host_budget_bytes"))
