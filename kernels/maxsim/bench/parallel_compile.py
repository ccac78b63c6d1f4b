"""Compiles the candidates of a library's autotuner side by side; what it then times and chooses is its own.

Triton's autotuner compiles one configuration after the other, which for two libraries and all cases takes
longer than everything else together. Triton can compile on a pool of threads; this asks it to, before a new
key is tuned.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["parallel_compile"]


@contextmanager
def parallel_compile() -> Iterator[None]:
    """Inside, an autotuner that meets a new key first has all its configurations compiled at once."""
    from triton import AsyncCompileMode
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs

    def prune_and_compile(tuner: Any, kwargs: dict[str, Any]) -> list[Any]:
        configs: list[Any] = prune(tuner, kwargs)
        options = {name: value for name, value in kwargs.items() if name != "warmup"}
        # An error comes again when the autotuner compiles that configuration, and there it is expected.
        with suppress(Exception), AsyncCompileMode(pool, ignore_errors=True):
            for config in configs:
                tuner.fn.warmup(*tuner.nargs.values(), **options, **config.all_kwargs())
        return configs

    Autotuner.prune_configs = prune_and_compile
    try:
        with ThreadPoolExecutor() as pool:
            yield
    finally:
        Autotuner.prune_configs = prune
