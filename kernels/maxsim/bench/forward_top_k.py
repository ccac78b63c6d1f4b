"""`top_k` beside `torch.topk`: ours promises an order among equals, theirs does not."""

import torch

import maxsim
from maxsim.bench.ceilings import Ceilings
from maxsim.bench.contest import Row, WrongScores, time_ours
from maxsim.bench.gpu_timing import GpuClock

__all__ = ["COUNTS", "name", "row"]

COUNTS = (1_000, 100_000, 1_000_000, 10_000_000)
K = 100


def name(count: int) -> str:
    """The case's name in the table."""
    return f"top {K} of {count:,}"


def row(clock: GpuClock, ceilings: Ceilings, count: int, generator: torch.Generator, rivals: bool) -> Row:
    """Time the 100 best of so many fresh scores. Raises WrongScores where a stable sort says otherwise."""
    # Rounded, so that there are ties to order.
    scores = (
        (torch.rand(count, generator=generator, device=generator.device) * 30).mul(1024).round().div(1024)
    )
    wanted = torch.sort(scores, descending=True, stable=True)
    found = maxsim.top_k(scores, K)
    if not torch.equal(found.indices, wanted.indices[:K]):
        raise WrongScores("top_k: not the order of a stable sort")
    # Each score is read once; the answers are nothing beside them. Comparing is not counted as arithmetic.
    moved_bytes = 4 * count
    times = time_ours(clock, lambda: maxsim.top_k(scores, K))
    limit_ms = ceilings.limit_ms(moved_bytes, 0, "float32")
    answer: Row = {
        "case": name(count),
        "kernel": "top_k",
        "max_relative_error": 0.0,
        "top20_agreement": 1.0,
        "bytes": moved_bytes,
        "flop": 0,
        "limit_ms": limit_ms,
        "share_of_limit": limit_ms / times["ours_ms"],
        **times,
        "rivals": {},
    }
    if rivals:
        theirs_ms = clock.cold_ms(lambda: torch.topk(scores, K))
        answer["rivals"] = {"torch.topk": theirs_ms}
        answer["rival_functions"] = {"torch.topk": "torch.topk, ties in any order"}
        answer["ratio_to_best_rival"] = times["ours_ms"] / theirs_ms
    return answer
