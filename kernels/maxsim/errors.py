"""Every error `maxsim` raises on purpose. Each message names the argument, its value and the remedy.

MaxSimError
├── ShapeError      wrong number of dimensions, or sizes that do not belong together
├── DTypeError      a dtype no kernel reads
├── DeviceError     operands on different devices
└── IndexRangeError offsets, spans or pair indices that point outside what they index
"""

__all__ = ["DTypeError", "DeviceError", "IndexRangeError", "MaxSimError", "ShapeError"]


class MaxSimError(ValueError):
    """Base of the tree; a `ValueError`, since each is a value that the caller can mend."""


class ShapeError(MaxSimError):
    """Wrong number of dimensions, or sizes that do not belong together."""


class DTypeError(MaxSimError):
    """A dtype that no kernel reads."""


class DeviceError(MaxSimError):
    """Operands on different devices."""


class IndexRangeError(MaxSimError):
    """Offsets, spans or pair indices that point outside what they index."""
