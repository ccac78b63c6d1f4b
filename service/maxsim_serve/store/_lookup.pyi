import numpy as np
from numpy.typing import NDArray

def enter(buckets: NDArray[np.int64], lines: NDArray[np.int64], known: list[str], first: int, /) -> None: ...
def find(
    buckets: NDArray[np.int64],
    lines: NDArray[np.int64],
    known: list[str],
    asked: list[str],
    places: NDArray[np.int64],
    /,
) -> tuple[int, int, int]: ...
def find_all(
    buckets: NDArray[np.int64],
    lines: NDArray[np.int64],
    known: list[str],
    asked: list[list[str]],
    places: NDArray[np.int64],
    found: NDArray[np.int64],
    helpers: int,
    /,
) -> None: ...
