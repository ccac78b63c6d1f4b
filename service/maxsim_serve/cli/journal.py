"""Where an import got to: written after every acknowledged batch, gone when the import is through."""

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .records import Place

__all__ = ["Journal", "Progress"]


@dataclass(frozen=True)
class Progress:
    """What the service has acknowledged so far."""

    offset_bytes: int = 0
    number: int = 0
    stored: int = 0
    refused: int = 0
    total: int = 0  # documents in the collection then

    @property
    def place(self) -> Place:
        return Place(self.offset_bytes, self.number)


class Journal:
    """The file for one import: one input file, in its present state, into one collection of one service.

    It lies under the user's state directory (XDG_STATE_HOME): the input's own may be read-only.
    """

    def __init__(self, source: Path, url: str, collection: str) -> None:
        path = source.resolve()
        stat = path.stat()
        identity = [str(path), stat.st_size, stat.st_mtime_ns, url, collection]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        self.path = state / "maxsim" / "imports" / f"{name}.json"

    def read(self) -> Progress | None:
        """The progress of an interrupted import; None if there is none, or none that can be read."""
        try:
            return Progress(**json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, progress: Progress) -> None:
        """Replace the file as a whole, so that an interruption leaves the old progress or the new."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps(asdict(progress)), encoding="utf-8")
        written.replace(self.path)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
