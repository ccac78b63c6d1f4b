"""The retriever of the demo: BM25 in memory, to stand where a search engine stands."""

import math
import re
from collections import Counter
from collections.abc import Sequence

__all__ = ["BM25"]

_K1, _B = 1.2, 0.75


class BM25:
    """Ranks documents by the query's words."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(_words(text)) for text in texts]
        self._lengths = [counts.total() for counts in self._counts]
        self._mean_length = sum(self._lengths) / max(1, len(texts))
        self._containing = Counter(word for counts in self._counts for word in counts)

    def top(self, query: str, count: int) -> list[int]:
        """Positions of the `count` best documents, best first; fewer if fewer have a word of the query."""
        scores = {i: score for i in range(len(self._counts)) if (score := self._score(_words(query), i)) > 0}
        return sorted(scores, key=lambda i: (-scores[i], i))[:count]

    def _score(self, words: Sequence[str], i: int) -> float:
        counts = self._counts[i]
        damping = _K1 * (1 - _B + _B * self._lengths[i] / self._mean_length)
        return sum(
            self._rarity(word) * counts[word] * (_K1 + 1) / (counts[word] + damping)
            for word in words
            if word in counts
        )

    def _rarity(self, word: str) -> float:
        containing = self._containing[word]
        return math.log(1 + (len(self._counts) - containing + 0.5) / (containing + 0.5))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
