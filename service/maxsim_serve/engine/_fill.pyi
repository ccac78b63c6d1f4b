from typing import Any

import numpy as np
from numpy.typing import NDArray

def fill(
    buffer: NDArray[np.uint8], places: list[int], arrays: list[NDArray[Any]], helpers: int, /
) -> None: ...
def write_through(buffer: NDArray[Any], array: NDArray[Any], /) -> None: ...
