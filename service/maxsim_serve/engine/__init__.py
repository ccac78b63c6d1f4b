"""The engine: one queue, one thread that owns the scoring, many requests in one work list."""

from .candidates import Candidates, InlineCandidates, StoredCandidates, WholeCollection
from .device import WORKSPACE_BYTES, Device, choose_device, make_scorer, use_kernel_cache, warm_up
from .engine import Engine
from .job import Explanation, Ranking
from .scorer import Scorer
from .worklist import CpuScorer

__all__ = [
    "WORKSPACE_BYTES",
    "Candidates",
    "CpuScorer",
    "Device",
    "Engine",
    "Explanation",
    "InlineCandidates",
    "Ranking",
    "Scorer",
    "StoredCandidates",
    "WholeCollection",
    "choose_device",
    "make_scorer",
    "use_kernel_cache",
    "warm_up",
]
