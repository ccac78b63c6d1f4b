"""What the runner asks of a device: launch a batch, wait for it, recover."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .candidates import Resolved

__all__ = ["SHORT_QUERY_BYTES", "Best", "Launched", "Request", "Scored", "Scorer"]


SHORT_QUERY_BYTES = 64 << 10


class Request(NamedTuple):
    """A query `[Lq, dim]` fp32 or fp16, its candidates, and how many of the best are wanted."""

    query: NDArray[np.generic]
    resolved: Resolved
    wanted: int


class Best(NamedTuple):
    """The best of one request, best first: positions int64 `[k]` and scores fp32 `[k]`."""

    positions: NDArray[np.int64]
    scores: NDArray[np.float32]


@dataclass(slots=True)  # not frozen, as Resolved
class Scored:
    """`results[i]` of request i: all scores fp32 `[count_i]`, −∞ where missing, or the best already picked.
    Scores may lie in a buffer that the next batch launched is given: rank them before.

    `launches` are (kernel, dtype of the documents). `stages_s` are seconds of the whole batch, `kernel` among
    them; `moved_bytes` are those copied to the device (`up`) and back (`down`); `graphs` were replayed.
    """

    results: Sequence[NDArray[np.float32] | Best]
    launches: Sequence[tuple[str, torch.dtype]]
    stages_s: dict[str, float]
    moved_bytes: dict[str, int] = field(default_factory=dict)
    graphs: int = 0


class Launched(Protocol):
    """A batch on its way."""

    def glance(self) -> Scored | None:
        """While the device works for long: what `wait` will return, with numbers of earlier batches."""

    def wait(self) -> Scored:
        """Block until it is scored. Raises what the device raised."""


class Scorer(Protocol):
    """Scores batches on one device, called by one thread.

    `depth` batches may be launched before the first is waited for; they are waited for in order.
    """

    depth: int
    device: torch.device

    def bind(self) -> None:
        """Called once, by the thread that will launch and wait."""

    def placed(self, query: NDArray[np.generic], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """A copy of a query in this dtype, where the device reads it soonest; from any thread. One of less
        than `SHORT_QUERY_BYTES` is as well where it is."""

    def launch(self, requests: Sequence[Request]) -> Launched: ...

    def explain(self, query: NDArray[np.generic], rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Per row of a query the winning row of a document's `rows` and its similarity, in host memory."""

    def release(self) -> None:
        """Give back what memory can be given back, after a batch ran out of it."""
