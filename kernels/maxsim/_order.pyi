import numpy as np
from numpy.typing import NDArray

def order(scores: NDArray[np.float32], positions: NDArray[np.int64], /) -> None: ...
