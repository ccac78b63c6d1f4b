import numpy as np
from numpy.typing import NDArray

def order(scores: NDArray[np.float32], positions: NDArray[np.int64], /) -> None: ...
def order_all(
    scores: list[NDArray[np.float32]],
    wanted: list[int],
    positions: NDArray[np.int64],
    best: NDArray[np.float32],
    helpers: int,
    /,
) -> None: ...
