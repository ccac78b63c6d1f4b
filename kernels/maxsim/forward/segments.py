"""How many segments a document is cut into, so that few long documents fill the chip.

Segments cost a second launch, which finishes what they leave; see docs/benchmarks/h200-forward.md.
"""

from maxsim.forward.configs import Config

__all__ = ["MOST_ROUNDS", "even_rounds", "one_each", "several_chunks_each", "several_each"]

# A program reads segments of few query rows one tile after the other: many small ones have more under way.
FILLED_PROGRAMS_PER_SM = 8
FILLED_MIN_TOKENS = 128
LONG_MIN_TOKENS = 512
# With the copy engine's ring a program has enough under way by itself.
COPIED_MIN_TOKENS = 256
# Where arithmetic bounds it: what the second launch takes, and each segment adds to that, in the time that
# 256 query rows take for so many tokens. About 2 µs and 0.1 µs.
FINISH_TOKENS, SEGMENT_TOKENS, FINISH_ROWS = 170, 9, 256
EVEN_MIN_TOKENS = 256
# Of what even rounds save on paper a last one that is half empty gives some back: the chip then runs faster.
WORTH = 0.9
# More rounds than so many gain nothing from being even.
MOST_ROUNDS = 16


def several_each(columns: int, longest: int, processors: int) -> int:
    """For few query rows and plain loads: several programs for each processor."""
    return _parts(columns, FILLED_PROGRAMS_PER_SM * processors, longest, FILLED_MIN_TOKENS)


def several_chunks_each(columns: int, longest: int, processors: int, chunks: int) -> int:
    """The same for many query rows, of which a program takes one of so many chunks."""
    return _parts(columns, FILLED_PROGRAMS_PER_SM * processors // chunks, longest, LONG_MIN_TOKENS)


def one_each(columns: int, longest: int, processors: int) -> int:
    """For few query rows and the copy engine: a program for each processor."""
    return _parts(columns, processors, longest, COPIED_MIN_TOKENS)


def even_rounds(columns: int, longest: int, groups: int, config: Config, finished: bool) -> int:
    """For many query rows: each of `groups` programs takes one segment after the other, and the last to be
    done should not be late. `finished`: the second launch follows in any case."""
    launch = FINISH_TOKENS * FINISH_ROWS / config.query_rows

    def tokens(segments: int) -> float:
        span = -(-longest // (segments * config.tokens)) * config.tokens
        rounds = -(-columns * segments // groups)
        if segments == 1:
            return WORTH * rounds * span
        return rounds * span + segments * SEGMENT_TOKENS + (0 if finished else launch)

    most = min(longest // EVEN_MIN_TOKENS, -(-MOST_ROUNDS * groups // columns))
    return min(range(1, max(most, 1) + 1), key=tokens)


def _parts(columns: int, wanted: int, longest: int, min_tokens: int) -> int:
    """So many that there are about `wanted` in all, of at least `min_tokens`."""
    return max(min(-(-wanted // columns), longest // min_tokens), 1)
