"""The tensors of one call, in a fixed order: a launch knows by their places which of them it takes.

Both sides as `rows.Side` describes them, a work list if there is one, and what is written: `scores`, float32
[Nq, Nd] or [P] of a work list; `scratch`, what one launch leaves for the next, the scores where nothing is
left. `nothing` is for what a kernel has a parameter for and a launch does not use.
"""

__all__ = ["DOCUMENT", "LISTED", "ORDER", "QUERY", "places"]

ORDER = (
    "queries", "query_starts", "query_lengths", "query_mask",
    "documents", "document_starts", "document_lengths", "document_mask",
    "query_index", "document_index", "scores", "scratch", "nothing",
)  # fmt: skip

# What most kernels take side by side.
QUERY, DOCUMENT = ORDER[1:3], ORDER[5:8]
LISTED = ("query_index", "document_index")


def places(*names: str) -> tuple[int, ...]:
    """Where operands of these names stand."""
    return tuple(map(ORDER.index, names))
