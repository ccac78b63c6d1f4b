"""Exact late interaction: score(Q, D) = Σ_i max_j <Q_i, D_j>, over dense, ragged and stored token embeddings.

import maxsim
documents = maxsim.Ragged.from_list([torch.randn(n, 128) for n in (17, 63, 111)])
scores = maxsim.score(torch.randn(32, 128), documents)      # float32 [1, 3]
best = maxsim.top_k(scores[0], 2)                           # values, indices
"""

from maxsim import reference
from maxsim.dispatch import Plan
from maxsim.errors import DeviceError, DTypeError, IndexRangeError, MaxSimError, ShapeError
from maxsim.operators import Explanation, compilations, explain, plan, score, score_pairs, warmup
from maxsim.ragged import Ragged, Spans
from maxsim.stream import StreamBuffers, stream
from maxsim.topk import TopK, top_k

__all__ = [
    "DTypeError",
    "DeviceError",
    "Explanation",
    "IndexRangeError",
    "MaxSimError",
    "Plan",
    "Ragged",
    "ShapeError",
    "Spans",
    "StreamBuffers",
    "TopK",
    "compilations",
    "explain",
    "plan",
    "reference",
    "score",
    "score_pairs",
    "stream",
    "top_k",
    "warmup",
]
