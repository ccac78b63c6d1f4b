"""What was measured: one row a figure, with the goal it is held to."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Goal", "Report"]


@dataclass(frozen=True)
class Goal:
    """What a figure has to be."""

    limit: float
    sense: Literal["at most", "at least"] = "at most"

    def met(self, value: float) -> bool:
        return value <= self.limit if self.sense == "at most" else value >= self.limit


@dataclass
class Report:
    """The rows so far, kept on disk as they grow. `head` names the machine, the versions and its limits."""

    head: dict[str, Any]
    path: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, case: str, value: float, unit: str, goal: Goal | None = None) -> None:
        """Add a row and print it."""
        row: dict[str, Any] = {"case": case, "value": value, "unit": unit}
        row["limit"] = None if goal is None else goal.limit
        if goal is not None:
            row |= {"sense": goal.sense, "met": goal.met(value)}
        self.rows.append(row)
        print(_line(row), flush=True)
        self.keep()

    def keep(self) -> None:
        if self.path is not None:
            text = json.dumps({**self.head, "rows": self.rows}, indent=1)
            self.path.write_text(text + "\n", encoding="utf-8")

    @property
    def missed(self) -> list[str]:
        """The cases whose goal was not met."""
        return [row["case"] for row in self.rows if row.get("met") is False]


def _line(row: dict[str, Any]) -> str:
    figure = f"{row['case']:<62} {row['value']:>14,.4g} {row['unit']:<6}"
    if row["limit"] is None:
        return figure
    return f"{figure} {row['sense']} {row['limit']:,g}{'' if row['met'] else '   MISSED'}"
