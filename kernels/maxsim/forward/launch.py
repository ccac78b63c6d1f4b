"""Compile once, launch in a few microseconds, and count compilations.

Triton's own launch works out its cache key from every argument, at more than 20 µs a call. Here a
`Launch` is all that follows from shapes, put together once for the same ones (`prepare`): it names its
variant, sizes are never part of the name, and a call adds its addresses. The interpreter
(TRITON_INTERPRET=1, read when Triton is imported) has neither variants nor a fast path.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs

from maxsim.forward.variant import Frame, Variant

__all__ = ["INTERPRETED", "Box", "Kernel", "Launch", "Options", "compilations", "enqueue"]

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
    """Boxes of a table that the copy engine is to read, as the compiler is told of them."""

    base: Tensor
    frame: Frame


# Of tensors that may not be there, by the parameter; all others hold indices, int64.
_DTYPES = {"Q_MASK": torch.bool, "X_MASK": torch.bool, "SUMS": torch.float64}


class Kernel:
    """A jitted function and its compiled variants.

    Its parameters: descriptors, if any; then tensors; then numbers; then constants.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self._variants: dict[Hashable, Variant] = {}

    def variant(self, launch: "Launch", operands: Sequence[Any]) -> Variant:
        """What a launch runs on its device, the current one."""
        known = (launch.device.index, launch.key)
        variant = self._variants.get(known)
        if variant is None:
            variant = self._variants[known] = _compiled(launch, operands)
        return variant


@dataclass(eq=False, slots=True)
class Launch:
    """All of a launch but its addresses.

    key     names the variant, which is compiled first if its key is new on the device
    tensors which operands the kernel takes, by their places
    numbers in the kernel's order; `first_column`, where there is one, is given in each call
    boxes   which operands are read in boxes, before the others in the kernel's order, and how
    """

    kernel: Kernel
    programs: int
    key: Hashable
    tensors: Sequence[int]
    numbers: tuple[int, ...]
    constants: tuple[Any, ...]
    options: Options
    device: torch.device
    boxes: tuple[tuple[int, Frame], ...] = ()
    _variant: Variant | None = None

    def __call__(self, stream: int, operands: Sequence[Any], first: int) -> None:
        """Start it on a stream of its device, the current one, for columns from `first` on."""
        variant = self._variant
        if variant is None:
            variant = self._variant = self.kernel.variant(self, operands)
        numbers = self._from(first) if first else self.numbers
        variant(self.programs, stream, self.boxes, self.tensors, operands, numbers)

    def interpret(self, operands: Sequence[Any], first: int) -> None:
        """The same in Triton's interpreter."""
        arguments, options = self.arguments(operands, first), self.options.keywords()
        self.kernel.function[(self.programs,)](*arguments, *self.constants, **options)

    def _from(self, first: int) -> tuple[int, ...]:
        """The numbers for columns from `first` on."""
        names = self.kernel.function.arg_names[len(self.boxes) + len(self.tensors) :]
        place = names.index("first_column")
        return *self.numbers[:place], first, *self.numbers[place + 1 :]

    def arguments(self, operands: Sequence[Any], first: int = 0) -> tuple[Any, ...]:
        """As the function takes them, with something in place of each tensor that is not there."""
        names = self.kernel.function.arg_names[len(self.boxes) :]
        absent = _stand_in(self.device)
        there = [
            absent.view(_DTYPES.get(name, torch.int64)) if operands[place] is None else operands[place]
            for name, place in zip(names, self.tensors, strict=False)
        ]
        boxes = [Box(operands[place], frame) for place, frame in self.boxes]
        return *boxes, *there, *(self._from(first) if first else self.numbers)


def enqueue(launches: Sequence[Launch], operands: Sequence[Any], first: int = 0) -> None:
    """Run launches of one device on its current stream, one after the other, for columns from `first` on.

    A tensor that is not there is None: the kernel gets an address and never reads it. A known variant
    allocates nothing and waits for nothing.
    """
    if INTERPRETED:
        for launch in launches:
            launch.interpret(operands, first)
        return
    index = launches[0].device.index
    if index != torch._C._cuda_getDevice():
        with torch.cuda.device(index):
            enqueue(launches, operands, first)
        return
    stream = torch._C._cuda_getCurrentRawStream(index)
    for launch in launches:
        launch(stream, operands, first)


def _compiled(launch: Launch, operands: Sequence[Any]) -> Variant:
    """For the current device, and tensors of these dtypes and alignments."""
    global _compiled_kernels
    arguments = map(_described, launch.arguments(operands))
    function, options = launch.kernel.function, launch.options.keywords()
    compiled = function.warmup(*arguments, *launch.constants, grid=(1,), **options)
    if hasattr(compiled, "result"):
        compiled = compiled.result()
    _compiled_kernels += 1
    return Variant(compiled, launch.constants, _stand_in(launch.device).data_ptr())


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
