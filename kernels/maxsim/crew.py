"""Threads that help with one call of compiled code, where that was built for it."""

import os
from functools import cache

__all__ = ["helpers"]

# Of the cores the caller has one, and whoever it lets go on meanwhile another.
_TAKEN_CORES = 2
_MOST = 5


@cache
def helpers() -> int:
    """How many may help; 0 on a machine of one or two cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(cores - _TAKEN_CORES, _MOST))
