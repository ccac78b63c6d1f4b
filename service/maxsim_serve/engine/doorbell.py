"""Where a thread waits for work. It stays awake for a while before it sleeps.

One that has slept for a millisecond finds its caches cold and its clock down, and takes two to three times as
long for what it does next.
"""

from queue import SimpleQueue

__all__ = ["Doorbell", "SleepyDoorbell", "compiled"]


class SleepyDoorbell:
    """Where nothing was compiled: sleeps at once."""

    def __init__(self, awake_s: float) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Let one waiter go on, now or when it comes; from any thread."""
        self._rings.put(None)

    def answer(self) -> None:
        """Wait for a ring that nobody has answered: one call into C, which wakes up fast."""
        self._rings.get()


try:
    from ._doorbell import Doorbell
except ImportError:
    Doorbell = SleepyDoorbell  # type: ignore[assignment,misc]
    compiled = False
else:
    compiled = True
