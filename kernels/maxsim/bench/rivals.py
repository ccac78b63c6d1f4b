"""The other libraries, each asked for every function it has for a piece of work, its inputs as it likes them.

Whatever a library would want done beforehand (padding, packing, 32-bit offsets, gathering the candidates of a
work list) is done outside the clock. Then all its functions are timed and the fastest is its time.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from maxsim import Ragged
from maxsim.bench.work import Work

__all__ = ["MOST_ELEMENTS", "Offers", "Rival", "gathered", "installed", "left_out"]

# Beyond this many elements of the documents, 32-bit addresses overflow.
MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class Offers:
    """What a library offers for a piece of work: calls by name, and why others were not taken."""

    calls: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def on_gathered(self) -> "Offers":
        """The same, named for what they need: candidates that were copied together outside the clock."""
        suffix = ", candidates gathered before"
        return Offers(
            {name + suffix: call for name, call in self.calls.items()},
            {name + suffix: reason for name, reason in self.refused.items()},
        )


@dataclass(frozen=True)
class Rival:
    """A library on PyPI, the module it is imported as, and what it offers."""

    name: str
    version: str
    module: str
    offers: Callable[[Work], Offers]

    @property
    def present(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


def installed() -> list[Rival]:
    """The rivals that can be imported here."""
    return [rival for rival in _all() if rival.present]


def left_out() -> list[str]:
    """One sentence for each rival that is not here or has another version than the one compared with."""
    sentences = []
    for rival in _all():
        wanted = f"{rival.name}=={rival.version}"
        if not rival.present:
            sentences.append(f"{rival.name} is not installed and was left out; pip install {wanted} adds it")
        elif (found := importlib.metadata.version(rival.name)) != rival.version:
            sentences.append(f"{rival.name} is {found} here; these functions were chosen for {wanted}")
    return sentences


def gathered(work: Work) -> Ragged:
    """The documents in the order of the scores, packed: a work list's candidates are copied together."""
    if work.pairs is None:
        return work.documents
    chosen = work.pairs[1]
    lengths, starts = work.documents.lengths[chosen], work.documents.offsets[chosen]
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    owner = torch.repeat_interleave(torch.arange(len(chosen), device=chosen.device), lengths)
    within = torch.arange(len(owner), device=chosen.device) - offsets[owner]
    return Ragged(work.documents.tokens[starts[owner] + within], offsets)


def _all() -> tuple[Rival, ...]:
    from maxsim.bench import rival_flash, rival_lik

    return (
        Rival("flash-maxsim", "0.3.0", "flash_maxsim", rival_flash.offers),
        Rival("late-interaction-kernels", "0.4.5", "late_interaction_kernels", rival_lik.offers),
    )
