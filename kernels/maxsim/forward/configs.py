"""Tile sizes of every kernel, by width and dtype: frozen, and all that `warmup` compiles."""

from functools import cache
from typing import Any, NamedTuple

import torch

from maxsim.forward.launch import Options

__all__ = ["Config", "configs"]


class Config(NamedTuple):
    """Tile sizes in rows and columns, and what the compiler is told.

    key    names this configuration among all widths and dtypes
    kernel short_query, short_hopper, long_query or hopper; query_rows × tokens × columns is one tile
    stages tiles in flight
    pairs  that a program of short_hopper takes one after the other
    """

    key: str
    kernel: str
    query_rows: int
    tokens: int
    columns: int
    stages: int
    options: Options
    pairs: int = 1


def _power_of_2(dim: int) -> int:
    return max(16, 1 << (dim - 1).bit_length())


@cache
def configs(dim: int, dtype: torch.dtype) -> dict[str, Config]:
    """Every configuration for token width `dim` and one compute dtype, by name: what `warmup` compiles."""
    width = _power_of_2(dim)
    table: dict[str, tuple[Any, ...]]
    if dtype == torch.float32:
        # Three bfloat16 each (products.py), four to seven times as fast as the FMA units. Every kernel takes
        # 32 columns at a time: partial sums must not differ.
        table = {
            "short-32": ("short_query", 32, 64, 32, 3, Options(4)),
            "short-64": ("short_query", 64, 64, 32, 3, Options(4)),
            "long": ("long_query", 128, 64, 32, 3, Options(8)),
            "long-wide": ("long_query", 128, 128, 32, 3, Options(8)),
        }
    elif width <= 128:
        table = {
            "short-32": ("short_query", 32, 32, width, 3, Options(1)),
            "few-32": ("short_query", 32, 64, width, 3, Options(4)),
            "short-64": ("short_query", 64, 64, width, 2, Options(4)),
            "long": ("long_query", 128, 64, width, 3, Options(4)),
            "hopper-few": ("short_hopper", 32, 64, max(width, 64), 2, Options(4)),
            "hopper-long": ("short_hopper", 32, 64, max(width, 64), 3, Options(4)),
            "hopper-32": ("short_hopper", 32, 32, max(width, 64), 3, Options(2), 2),
            "hopper-128": ("hopper", 128, 128, max(width, 64), 4, Options(4)),
            "hopper-256": ("hopper", 256, 128, max(width, 64), 4, Options(4)),
        }
    else:
        # Wider rows are taken 128 columns at a time, in every kernel: partial sums must not differ.
        step = width if width == 256 else 128
        table = {
            # The query's columns come again with each tile: past 256 it pays to have fewer, larger ones.
            "short-32": ("short_query", 32, 32, step, 3, Options(2))
            if width == 256
            else ("short_query", 32, 64, step, 2, Options(4)),
            "short-64": ("short_query", 64, 64, step, 2, Options(4)),
            "long": ("long_query", 128, 64 if width == 256 else 128, step, 2, Options(8)),
        }
        if width == 256:
            table["hopper-128"] = ("hopper", 128, 128, 256, 2, Options(4))
    return {name: Config(f"{name} {dim} {dtype}", *tiles) for name, tiles in table.items()}
