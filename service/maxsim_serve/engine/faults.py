"""What an error of a device means: no room for this batch, or a device that is of no use any more."""

import torch

__all__ = ["is_device_lost", "is_out_of_memory"]


def is_out_of_memory(error: BaseException) -> bool:
    """The batch did not fit; the next may."""
    # torch's CPU allocator raises a plain RuntimeError, and so does a CUDA library without room for itself.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        text in str(error) for text in ("not enough memory", "CUDA error: out of memory")
    )


def is_device_lost(error: BaseException) -> bool:
    """A CUDA error stays: every later call of this process fails like the first."""
    if is_out_of_memory(error) or not isinstance(error, RuntimeError):
        return False
    # Triton's launcher says it in its own words.
    return "CUDA error" in str(error) or "Triton Error [CUDA]" in str(error)
