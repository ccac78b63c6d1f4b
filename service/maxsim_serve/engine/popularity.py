"""How often things were asked for lately."""

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Popularity"]

_Thing = TypeVar("_Thing", bound=Hashable)


class Popularity(Generic[_Thing]):
    """Counts that are halved every `period` askings; what comes to 0 is forgotten. There are never more
    than two periods' worth of them."""

    def __init__(self, period: int) -> None:
        self._period = period
        self._counts: dict[_Thing, int] = {}
        self._asked = 0

    def ask(self, thing: _Thing) -> None:
        """Count one more."""
        self._asked += 1
        if self._asked % self._period == 0:
            self._counts = {one: count // 2 for one, count in self._counts.items() if count > 1}
        self._counts[thing] = self._counts.get(thing, 0) + 1

    def of(self, thing: _Thing) -> int:
        return self._counts.get(thing, 0)
