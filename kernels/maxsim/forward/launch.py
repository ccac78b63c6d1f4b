"""Compile once, launch in a few microseconds, and count compilations.

Triton's own launch works out its cache key from every argument, at more than 20 µs a call. Here the
caller names the variant, and sizes are never part of the name. The interpreter (TRITON_INTERPRET=1,
read when Triton is imported) has neither variants nor a fast path.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs

__all__ = ["INTERPRETED", "Kernel", "Options", "compilations"]

INTERPRETED = bool(knobs.runtime.interpret)

_compiled_kernels = 0


def compilations() -> int:
    """How many kernel variants this process has compiled or loaded from Triton's cache on disk."""
    return _compiled_kernels


class Options(NamedTuple):
    """Warps a program; whether its launch may overlap the end of the kernel before it."""

    num_warps: int
    launch_pdl: bool = False

    def keywords(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, **({"launch_pdl": True} if self.launch_pdl else {})}


class _Variant(NamedTuple):
    """A compiled kernel on one device, and the constants it was compiled for."""

    compiled: Any
    constants: tuple[Any, ...]


class Kernel:
    """A jitted function and its compiled variants.

    Its parameters: descriptors, if any; then tensors; then numbers; then constants.
    """

    def __init__(self, function: Any, tensors: slice) -> None:
        self.function = function
        self._tensors = tensors
        self._variants: dict[Hashable, _Variant] = {}

    def launch(
        self,
        programs: int,
        key: Hashable,
        arguments: tuple[Any, ...],
        constants: Callable[[], tuple[Any, ...]],
        options: Options,
        device: torch.device,
    ) -> None:
        """Run a variant on the current stream of a device; compile it first if its key is new there.

        `constants` is asked only then. A known variant allocates nothing and waits for nothing.
        """
        if programs == 0:
            return
        if INTERPRETED:
            self.function[(programs,)](*arguments, *constants(), **options.keywords())
            return
        index = device.index
        if index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                self.launch(programs, key, arguments, constants, options, device)
            return
        variant = self._variants.get((index, key))
        if variant is None:
            variant = self._variants[(index, key)] = self._compile(arguments, constants(), options)
        compiled = variant.compiled
        # Addresses as integers: Triton's launcher would ask the driver about each tensor.
        plain = list(arguments)
        plain[self._tensors] = map(Tensor.data_ptr, arguments[self._tensors])
        compiled.run(
            programs, 1, 1, torch._C._cuda_getCurrentRawStream(index), compiled.function,
            compiled.packed_metadata, None, None, None, *plain, *variant.constants,
        )  # fmt: skip

    def _compile(self, arguments: tuple[Any, ...], constants: tuple[Any, ...], options: Options) -> _Variant:
        """For the current device, from arguments of the dtypes and alignments wanted."""
        global _compiled_kernels
        compiled = self.function.warmup(*arguments, *constants, grid=(1,), **options.keywords())
        if hasattr(compiled, "result"):
            compiled = compiled.result()
        # Loads the binary onto the device; only then is `function` a handle.
        _ = compiled.run
        _compiled_kernels += 1
        return _Variant(compiled, constants)
