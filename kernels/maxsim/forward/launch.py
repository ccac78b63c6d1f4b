"""Compile once, launch in a few microseconds, and count compilations.

Triton's own launch works out its cache key from every argument, at more than 20 µs a call. Here the
caller names the variant, and sizes are never part of the name. The interpreter (TRITON_INTERPRET=1,
read when Triton is imported) has neither variants nor a fast path.
"""

import inspect
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs
from triton.backends.nvidia.driver import make_tensordesc_arg

__all__ = ["INTERPRETED", "Box", "Kernel", "Options", "compilations"]

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


class Box(NamedTuple):
    """Boxes of a table that the copy engine is to read, with the fields of Triton's TensorDescriptor, whose
    own constructor checks them for 20 µs a call."""

    base: Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    layout: Any
    padding: str = "zero"


# Encoded boxes that a variant remembers; a service has a few stores, and query buffers that come again.
MAX_ENCODED = 256


class _Variant:
    """A compiled kernel on one device, ready to run, and the constants it was compiled for."""

    def __init__(self, compiled: Any, constants: tuple[Any, ...]) -> None:
        run = compiled.run  # loads the binary onto the device; only then is `function` a handle
        if run.global_scratch_size or run.profile_scratch_size:
            raise AssertionError(f"{compiled.name} wants scratch memory, which a launch may not allocate")
        self._start = _unwrapped(run.launch)
        self._kernel = (compiled.function, run.launch_cooperative_grid, run.launch_pdl, None, None)
        self._hooks = (compiled.packed_metadata, None, None, None)
        self._constants = constants
        self._boxes = compiled.metadata.tensordesc_meta or ()
        self._encoded: dict[Hashable, tuple[Any, ...]] = {}

    def __call__(self, programs: int, stream: int, boxes: tuple[Box, ...], plain: list[Any]) -> None:
        described: list[Any] = []
        for box, meta in zip(boxes, self._boxes, strict=True):
            described += self._encode(box, meta)
        self._start(
            programs, 1, 1, stream, *self._kernel, *self._hooks, *described, *plain, *self._constants
        )  # fmt: skip

    def _encode(self, box: Box, meta: dict[str, Any]) -> tuple[Any, ...]:
        """What the copy engine reads for a box. It depends on nothing but the key, so it is never stale."""
        key = (box.base.data_ptr(), box.shape, box.strides, box.block_shape)
        encoded = self._encoded.get(key)
        if encoded is None:
            if len(self._encoded) >= MAX_ENCODED:
                self._encoded.clear()
            encoded = self._encoded[key] = tuple(make_tensordesc_arg(box, meta))
        return encoded


def _unwrapped(launch: Any) -> Any:
    """The launcher written in C: around it Triton encodes every box anew in each launch."""
    closure = inspect.getclosurevars(launch).nonlocals if inspect.isfunction(launch) else {}
    return closure.get("launcher", launch)


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
        # Addresses as integers: Triton's launcher would ask the driver about each tensor.
        boxes, tensors = self._tensors.start, self._tensors.stop
        plain = [*map(Tensor.data_ptr, arguments[self._tensors]), *arguments[tensors:]]
        variant(programs, torch._C._cuda_getCurrentRawStream(index), arguments[:boxes], plain)

    def _compile(self, arguments: tuple[Any, ...], constants: tuple[Any, ...], options: Options) -> _Variant:
        """For the current device, from arguments of the dtypes and alignments wanted."""
        global _compiled_kernels
        arguments = tuple(_described(argument) for argument in arguments)
        compiled = self.function.warmup(*arguments, *constants, grid=(1,), **options.keywords())
        if hasattr(compiled, "result"):
            compiled = compiled.result()
        _compiled_kernels += 1
        return _Variant(compiled, constants)


def _described(argument: Any) -> Any:
    """What the compiler knows for what a launch passes."""
    if not isinstance(argument, Box):
        return argument
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    base, shape, strides, block_shape, layout, padding = argument
    return TensorDescriptor(base, list(shape), list(strides), list(block_shape), layout, padding)
