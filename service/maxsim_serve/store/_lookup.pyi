import numpy as np
from numpy.typing import NDArray

def enter(buckets: NDArray[np.int64], names: NDArray[np.uint8], known: list[str], first: int, /) -> None: ...
def find(
    buckets: NDArray[np.int64],
    names: NDArray[np.uint8],
    known: list[str],
    table: NDArray[np.int64],
    asked: list[str],
    places: NDArray[np.int64],
    /,
) -> tuple[int, int, int]: ...
