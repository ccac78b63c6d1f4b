"""Where a thread waits for work. It stays awake for a while before it sleeps.

One that has slept for a millisecond finds its caches cold and its clock down, and takes two to three times as
long for what it does next.
"""

from _thread import allocate_lock
from contextlib import suppress

__all__ = ["Doorbell", "SleepyDoorbell", "compiled"]


class SleepyDoorbell:
    """Where nothing was compiled: sleeps at once."""

    def __init__(self, awake_s: float) -> None:
        self._silence = allocate_lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Let the waiter go on, now or when it comes; from any thread."""
        with suppress(RuntimeError):  # it has rung already
            self._silence.release()

    def answer(self) -> None:
        """Wait until it has rung since the last answer. For one thread."""
        self._silence.acquire()


try:
    from ._doorbell import Doorbell
except ImportError:
    Doorbell = SleepyDoorbell  # type: ignore[assignment,misc]
    compiled = False
else:
    compiled = True
