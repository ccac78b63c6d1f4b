"""The engine: one queue, one thread that owns the scoring, many requests in one work list."""

from .candidates import Candidates, InlineCandidates, StoredCandidates, WholeCollection
from .engine import Engine
from .job import Explanation, Ranking

__all__ = [
    "Candidates",
    "Engine",
    "Explanation",
    "InlineCandidates",
    "Ranking",
    "StoredCandidates",
    "WholeCollection",
]
