"""Compile once, launch in a few microseconds, and count compilations.

Triton's own launch works out its cache key from every argument, at more than 20 µs a call. Here the
caller names the variant, and sizes are never part of the name. A `Launch` is all that follows from
shapes, put together once for the same ones: a call adds its addresses. The interpreter
(TRITON_INTERPRET=1, read when Triton is imported) has neither variants nor a fast path.
"""

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs
from triton.backends.nvidia.driver import make_tensordesc_arg

__all__ = ["INTERPRETED", "Box", "Frame", "Kernel", "Launch", "Options", "compilations"]

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


@dataclass(eq=False, slots=True)
class Frame:
    """What the copy engine is told of a table beside its address: the size of it, strides in elements, the
    size of a box and how that lies in shared memory. Made once for each and compared by identity."""

    shape: tuple[int, int]
    strides: tuple[int, int]
    block_shape: tuple[int, int]
    layout: Any


class Box(NamedTuple):
    """Boxes of a table that the copy engine is to read. Triton's own TensorDescriptor checks for 20 µs a call
    what a frame knows."""

    base: Tensor
    frame: Frame


# Of tensors that may not be there, by the parameter; all others hold indices, int64.
_DTYPES = {"Q_MASK": torch.bool, "X_MASK": torch.bool, "SUMS": torch.float64}

# Encoded boxes that a variant remembers; a service has a few stores, and query buffers that come again.
MAX_ENCODED = 256


class _Variant:
    """A compiled kernel on one device, ready to run, and the constants it was compiled for."""

    def __init__(self, compiled: Any, constants: tuple[Any, ...], absent: int) -> None:
        run = compiled.run  # loads the binary onto the device; only then is `function` a handle
        if run.global_scratch_size or run.profile_scratch_size:
            raise AssertionError(f"{compiled.name} wants scratch memory, which a launch may not allocate")
        self._start = _unwrapped(run.launch)
        kernel = (compiled.function, run.launch_cooperative_grid, run.launch_pdl, None, None)
        self._kernel = (*kernel, compiled.packed_metadata, None, None, None)
        self._constants = constants
        self._absent = absent
        self._boxes = compiled.metadata.tensordesc_meta or ()
        self._encoded: dict[tuple[int, Frame], tuple[Any, ...]] = {}

    def __call__(
        self,
        programs: int,
        stream: int,
        frames: tuple[Frame, ...],
        tables: Sequence[Tensor],
        tensors: Sequence[Tensor | None],
        numbers: tuple[int, ...],
    ) -> None:
        absent = self._absent
        # Addresses as integers: Triton's launcher would ask the driver about each tensor.
        addresses = [absent if tensor is None else tensor.data_ptr() for tensor in tensors]
        described: list[Any] = []
        for number, frame in enumerate(frames):
            table = tables[number]
            # What the copy engine reads for a box depends on nothing but the key: it is never stale.
            key = (table.data_ptr(), frame)
            described += self._encoded.get(key) or self._encode(key, table, number)
        self._start(
            programs, 1, 1, stream, *self._kernel, *described, *addresses, *numbers, *self._constants
        )  # fmt: skip

    def _encode(self, key: tuple[int, Frame], base: Tensor, number: int) -> tuple[Any, ...]:
        if len(self._encoded) >= MAX_ENCODED:
            self._encoded.clear()
        _, frame = key
        described = SimpleNamespace(base=base, shape=frame.shape, strides=frame.strides, padding="zero")
        encoded = self._encoded[key] = tuple(make_tensordesc_arg(described, self._boxes[number]))
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
        """One launch that is not remembered, with arguments in the order of the function's parameters; all
        else is as in `Launch`."""
        first, end = self._tensors.start, self._tensors.stop
        tables, frames = zip(*arguments[:first], strict=True) if first else ((), ())
        launch = Launch(self, programs, key, frames, arguments[end:], constants, options, device)
        launch(tables, arguments[first:end])

    def variant(
        self, launch: "Launch", tables: Sequence[Tensor], tensors: Sequence[Tensor | None]
    ) -> _Variant:
        """What a launch runs on its device, the current one."""
        known = (launch.device.index, launch.key)
        variant = self._variants.get(known)
        if variant is None:
            variant = self._variants[known] = _compiled(launch, tables, tensors)
        return variant


@dataclass(eq=False, slots=True)
class Launch:
    """All of a launch but its addresses.

    key       names the variant, which is compiled first if its key is new on the device
    frames    of the tables that are read in boxes
    constants asked only for a new key
    """

    kernel: Kernel
    programs: int
    key: Hashable
    frames: tuple[Frame, ...]
    numbers: tuple[int, ...]
    constants: Callable[[], tuple[Any, ...]]
    options: Options
    device: torch.device
    _variant: _Variant | None = None

    def __call__(self, tables: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> None:
        """Run it on the current stream of its device, with a table for each frame.

        A tensor that is not there is None: the kernel gets an address and never reads it. A known variant
        allocates nothing and waits for nothing.
        """
        if self.programs == 0:
            return
        if INTERPRETED:
            arguments = self.arguments(tables, tensors)
            self.kernel.function[(self.programs,)](*arguments, *self.constants(), **self.options.keywords())
            return
        index = self.device.index
        if index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                self(tables, tensors)
            return
        if self._variant is None:
            self._variant = self.kernel.variant(self, tables, tensors)
        stream = torch._C._cuda_getCurrentRawStream(index)
        self._variant(self.programs, stream, self.frames, tables, tensors, self.numbers)

    def arguments(self, tables: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """As the function takes them, with something in place of each tensor that is not there."""
        names = self.kernel.function.arg_names[len(tables) :]
        there = [
            _stand_in(self.device).view(_DTYPES.get(name, torch.int64)) if tensor is None else tensor
            for name, tensor in zip(names, tensors, strict=False)
        ]
        return *map(Box, tables, self.frames), *there, *self.numbers


def _compiled(launch: Launch, tables: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> _Variant:
    """For the current device, and tensors of these dtypes and alignments."""
    global _compiled_kernels
    arguments, constants = map(_described, launch.arguments(tables, tensors)), launch.constants()
    function, options = launch.kernel.function, launch.options.keywords()
    compiled = function.warmup(*arguments, *constants, grid=(1,), **options)
    if hasattr(compiled, "result"):
        compiled = compiled.result()
    _compiled_kernels += 1
    return _Variant(compiled, constants, _stand_in(launch.device).data_ptr())


@cache
def _stand_in(device: torch.device) -> Tensor:
    """Memory for a kernel to get the address of, and not to read."""
    return torch.zeros(16, dtype=torch.uint8, device=device)


def _described(argument: Any) -> Any:
    """What the compiler knows for what a launch passes."""
    if not isinstance(argument, Box):
        return argument
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    base, frame = argument
    lists = list(frame.shape), list(frame.strides), list(frame.block_shape)
    return TensorDescriptor(base, *lists, frame.layout, "zero")
