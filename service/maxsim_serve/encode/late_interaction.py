"""Any late-interaction model, by hub name or folder, through the library that is installed.

sentence-transformers 6 (`MultiVectorEncoder`) and PyLate (`models.ColBERT`) exclude each other by their
pins; either will do. Prefixes, lengths, query expansion, skip-lists and normalization are the model's own,
and both libraries apply them.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput

__all__ = ["LateInteraction", "load_late_interaction"]

_EncodeTexts = Callable[[list[str]], list[Any]]

# In `config_sentence_transformers.json`: what a late-interaction checkpoint calls itself, or, if it was
# written by an early PyLate, the keys that it alone has.
_MODEL_TYPES = {"ColBERT", "MultiVectorEncoder"}
_PYLATE_KEYS = {"query_prefix", "document_prefix"}


class LateInteraction:
    """A loaded model: one function that encodes queries, one that encodes documents.

    Its name is the hub's or, for a folder, the folder's: answers show it, and paths are the server's own.
    """

    def __init__(self, name: str, encode_queries: _EncodeTexts, encode_documents: _EncodeTexts) -> None:
        self.name = Path(name).resolve().name if Path(name).is_dir() else name
        self._encode_queries = encode_queries
        self._encode_documents = encode_documents
        self.dim = int(self.encode_queries(["width"])[0].shape[1])

    def encode_queries(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return [np.asarray(tokens, dtype=np.float32) for tokens in self._encode_queries(list(texts))]

    def encode_documents(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return [np.asarray(tokens, dtype=np.float32) for tokens in self._encode_documents(list(texts))]


def load_late_interaction(name: str) -> LateInteraction:
    """Load on the CPU. Raises `InvalidInput` as `load` says."""
    try:
        opened = _open(name)
    except ImportError as error:
        raise InvalidInput(
            f"encoder = {name}: {error}; run: pip install 'maxsim-serve[encode]'", param="encoder"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"encoder = {name!r} is neither none nor minilm, and does not load as a model: {error}",
            param="encoder",
        ) from error
    return opened


def _open(name: str) -> LateInteraction:
    if _looks_like_a_folder(name) and not Path(name).is_dir():
        raise FileNotFoundError("there is no such folder")
    from sentence_transformers.util import load_file_path
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a bar for each load has no place in a service's log
    # Both libraries would give any other checkpoint a random projection, and serve noise without a word.
    if not _is_late_interaction(lambda file: load_file_path(name, file)):
        raise ValueError("the checkpoint is not a late-interaction (ColBERT, ColPali) model")
    try:
        from sentence_transformers import MultiVectorEncoder
    except ImportError:
        return _open_with_pylate(name)
    model = MultiVectorEncoder(name, device="cpu")
    return LateInteraction(
        name,
        lambda texts: model.encode_query(texts, show_progress_bar=False, convert_to_numpy=True),
        lambda texts: model.encode_document(texts, show_progress_bar=False, convert_to_numpy=True),
    )


def _open_with_pylate(name: str) -> LateInteraction:
    from pylate.models import ColBERT

    model = ColBERT(name, device="cpu")
    return LateInteraction(
        name,
        lambda texts: model.encode(texts, is_query=True, show_progress_bar=False),
        lambda texts: model.encode(texts, is_query=False, show_progress_bar=False),
    )


def _looks_like_a_folder(name: str) -> bool:
    """Hub names are `model` or `owner/model`."""
    return name.count("/") > 1 or name.startswith(("/", ".", "~"))


def _is_late_interaction(find: Callable[[str], str | None]) -> bool:
    """Whether the checkpoint, whose files `find` returns the paths of, holds a trained token projection."""
    config = _read_json(find("config.json"))
    if config is None:
        raise FileNotFoundError("no config.json, in a folder here or at the hub (is the hub reachable?)")
    saved = _read_json(find("config_sentence_transformers.json")) or {}
    if saved.get("model_type") in _MODEL_TYPES or _PYLATE_KEYS & saved.keys():
        return True
    architectures = config.get("architectures") or []
    return any(name == "HF_ColBERT" or name.endswith("ForRetrieval") for name in architectures)


def _read_json(path: str | None) -> dict[str, Any] | None:
    return None if path is None else dict(json.loads(Path(path).read_text(encoding="utf-8")))
