"""A kernel compiled for one device, and how it is started: its launcher in C, addresses as integers."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from triton.backends.nvidia.driver import make_tensordesc_arg

__all__ = ["Frame", "Variant"]

# Encoded boxes that a variant remembers; a service has a few stores, and query buffers that come again.
MAX_ENCODED = 256


@dataclass(eq=False, slots=True)
class Frame:
    """What the copy engine is told of a table beside its address: the size of it, strides in elements, the
    size of a box and how that lies in shared memory. Made once for each and compared by identity."""

    shape: tuple[int, int]
    strides: tuple[int, int]
    block_shape: tuple[int, int]
    layout: Any


class Variant:
    """A compiled kernel on one device, ready to run, and the constants it was compiled for."""

    def __init__(self, compiled: Any, constants: tuple[Any, ...], absent: int) -> None:
        """`absent` is the address of a tensor that is not there."""
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
        boxes: tuple[tuple[int, Frame], ...],
        tensors: Sequence[int],
        operands: Sequence[Any],
        numbers: tuple[int, ...],
    ) -> None:
        """Boxes and tensors are given by their places among the operands, all in the kernel's order."""
        absent = self._absent
        # Addresses as integers: Triton's launcher would ask the driver about each tensor.
        addresses = [
            absent if (tensor := operands[place]) is None else tensor.data_ptr() for place in tensors
        ]
        described: tuple[Any, ...] = ()
        for number, (place, frame) in enumerate(boxes):
            # What the copy engine reads for a box depends on nothing but the key: it is never stale.
            key = (operands[place].data_ptr(), frame)
            described += self._encoded.get(key) or self._encode(key, operands[place], number)
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
