"""Which memory is for what, and which tier a collection is in: decided before any of it is taken."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import OutOfSpace
from .tier import Tier

__all__ = ["GpuPlan", "choose_tier", "plan_gpu"]

_HEADROOM_SHARE = 20  # one part in so many of the device stays free


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """Bytes of the device by purpose. The purposes and what is used already add up to the total at most."""

    total_bytes: int
    store_bytes: int
    workspace_bytes: int
    encoder_bytes: int
    headroom_bytes: int


def plan_gpu(
    *, total_bytes: int, free_bytes: int, budget_bytes: int, workspace_bytes: int, encoder_bytes: int
) -> GpuPlan:
    """`budget_bytes` for the store, 0 for all that is left. Raises OutOfSpace where it is not there."""
    headroom_bytes = total_bytes // _HEADROOM_SHARE
    left_bytes = max(0, free_bytes - workspace_bytes - encoder_bytes - headroom_bytes)
    if budget_bytes > left_bytes:
        raise OutOfSpace(
            f"gpu_budget_bytes = {budget_bytes:,}: {free_bytes:,} bytes of the device are free, and "
            f"{workspace_bytes:,} are for scoring, {encoder_bytes:,} for the encoder, {headroom_bytes:,} for "
            f"whatever comes; set it to {left_bytes:,} or less, or to 0",
            param="gpu_budget_bytes",
        )
    return GpuPlan(total_bytes, budget_bytes or left_bytes, workspace_bytes, encoder_bytes, headroom_bytes)


def choose_tier(asked: str, size_bytes: int, tiers: Mapping[str, Tier]) -> Tier:
    """The tier for a collection of this size. `auto` is the GPU while it has room for it; without one, all
    are in host memory.
    """
    gpu, host = tiers.get("gpu"), tiers["host"]
    if gpu is None or asked == "host":
        return host
    return gpu if asked == "gpu" or gpu.budget.fits(size_bytes) else host
