"""What an encoder is, and which one a name stands for."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Encoder", "load"]


class Encoder(Protocol):
    """Turns texts into token embeddings, queries and documents each in the model's own way.

    Both methods take one batch, padded to its longest text and run as a whole, so the caller keeps
    batches small and of similar lengths. They return one float32 array [tokens, dim] per text.
    """

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def encode_queries(self, texts: Sequence[str]) -> list[NDArray[np.float32]]: ...

    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[np.float32]]: ...


def load(name: str) -> Encoder | None:
    """The encoder called `name`, on the CPU: "none" (no encoder), "minilm" (the embedded model), or else a
    late-interaction model by its hub name or folder.

    Raises `InvalidInput` (param `encoder`) if the extra `encode` is not installed, or if there is no such
    model, or if it is not a late-interaction model.
    """
    if name == "none":
        return None
    # Imported here: without an encoder the service needs neither transformers nor the seconds it loads for.
    if name == "minilm":
        from .minilm import MiniLM

        return MiniLM()
    from .late_interaction import load_late_interaction

    return load_late_interaction(name)
