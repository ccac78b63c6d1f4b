import numpy as np
from numpy.typing import NDArray

def as_json(scores: NDArray[np.float32], positions: NDArray[np.int64], ids: list[str], /) -> bytes | None: ...
def as_msgpack(
    scores: NDArray[np.float32], positions: NDArray[np.int64], ids: list[str], /
) -> bytes | None: ...
