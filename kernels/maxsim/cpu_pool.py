"""The CPU backend's own threads, each of which computes alone: one document range per thread.

Splitting one matrix product over threads costs a barrier per product, and small OpenMP regions are
dear when the machine is busy; whole document ranges need one hand-over each. So every worker tells
PyTorch to use a single thread. That setting holds for the calling thread, but it is also what
threads started later begin with, so the start puts the old default back.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

__all__ = ["Unit", "run", "threads", "together"]

Unit = Callable[[], None]

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def threads() -> int:
    """Threads a call from here is spread over: `torch.get_num_threads()`."""
    return torch.get_num_threads()


def run(units: Sequence[Unit]) -> None:
    """Run all units on the pool and wait for all of them; the first exception travels on.

    For units that call PyTorch: the pool's threads are the ones where each of its calls stays on one thread.
    """
    pool = _pool(threads())
    _finish([pool.submit(unit) for unit in units])


def together(work: Unit, most: int) -> None:
    """Have the calling thread and others, `most` in all, call `work` at the same time; wait for all of them.

    For work that divides itself and does not call PyTorch. The caller works while the others wake up; those
    that have not when it is done are not needed any more.
    """
    hands = min(threads(), most)
    others = [_pool(threads()).submit(work) for _ in range(hands - 1)]
    try:
        work()
    finally:
        _finish([other for other in others if not other.cancel()])


def _finish(futures: Sequence["Future[None]"]) -> None:
    failures = [failure for future in futures if (failure := future.exception())]
    if failures:
        raise failures[0]


def _pool(size: int) -> ThreadPoolExecutor:
    """The pool of this size. Each is kept: callers with other settings do not disturb one another."""
    with _lock:
        if size not in _pools:
            _pools[size] = _start(size)
        return _pools[size]


def _start(size: int) -> ThreadPoolExecutor:
    """A pool with every worker started and set to one thread, the default for other threads unchanged."""
    pool = ThreadPoolExecutor(size, thread_name_prefix="maxsim-cpu")

    def start() -> None:
        default = torch.get_num_threads()
        ready = threading.Barrier(size + 1)

        def alone() -> None:
            # A thread adopts the default at its first question, so that must come before its own setting.
            torch.get_num_threads()
            torch.set_num_threads(1)
            ready.wait()

        for _ in range(size):
            pool.submit(alone)
        ready.wait()
        torch.set_num_threads(default)

    # A thread of its own sees the default for new threads, which the caller's setting may hide.
    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    return pool


def _after_fork() -> None:
    """A forked child has the pools but none of their threads."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_after_fork)
