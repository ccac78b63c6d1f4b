"""Compile once, launch in a few microseconds, and count compilations.

Triton's own launch works out its cache key from every argument, at more than 20 µs a call. Here the
caller names the variant: constants, options and the dtypes of the two token tensors. Sizes are never
part of it. The interpreter (TRITON_INTERPRET=1) has neither variants nor a fast path.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import knobs

__all__ = ["Kernel", "Options", "compilations", "interpreted"]

_compiled_kernels = 0


def compilations() -> int:
    """How many kernel variants this process has compiled or loaded from Triton's cache on disk."""
    return _compiled_kernels


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, on host tensors."""
    return bool(knobs.runtime.interpret)


@dataclass(frozen=True)
class Options:
    """How the compiler lays a kernel out: warps a program, a register limit, stages of loads in flight."""

    num_warps: int
    maxnreg: int | None = None

    def keywords(self) -> dict[str, int]:
        limit = {} if self.maxnreg is None else {"maxnreg": self.maxnreg}
        return {"num_warps": self.num_warps, **limit}


class Kernel:
    """A jitted function and its compiled variants."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self._variants: dict[Hashable, Any] = {}

    def compile(self, device: int, key: Hashable, arguments: tuple[Any, ...], constants: tuple[Any, ...],
                options: Options) -> Any:  # fmt: skip
        """The variant for this key, compiled for a device from arguments of its dtypes if it is new."""
        global _compiled_kernels
        variant = self._variants.get((device, key))
        if variant is None:
            with torch.cuda.device(device):
                variant = self.function.warmup(*arguments, *constants, grid=(1,), **options.keywords())
                variant = variant.result() if hasattr(variant, "result") else variant
                # Loads the binary onto the device; only then is `function` a handle.
                variant.run  # noqa: B018
            _compiled_kernels += 1
            self._variants[(device, key)] = variant
        return variant

    def launch(self, grid: tuple[int, int], key: Hashable, arguments: tuple[Any, ...], constants: tuple[Any, ...],
               options: Options, device: torch.device) -> None:  # fmt: skip
        """Run on the current stream of a device; nothing is allocated and nothing waited for."""
        if grid[0] == 0 or grid[1] == 0:
            return
        if interpreted():
            self.function[grid](*arguments, *constants, **options.keywords())
            return
        index = device.index
        if index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                self.launch(grid, key, arguments, constants, options, device)
            return
        variant = self._variants.get((index, key))
        if variant is None:
            variant = self.compile(index, key, arguments, constants, options)
        stream = torch._C._cuda_getCurrentRawStream(index)
        # Addresses as integers: Triton's launcher would ask the driver about each tensor.
        plain = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        variant.run(
            grid[0], grid[1], 1, stream, variant.function, variant.packed_metadata,
            None, None, None, *plain, *constants,
        )  # fmt: skip

