"""Texts to token embeddings: which encoder a name stands for, and the thread that runs it."""

from .encoder import Encoder, load
from .worker import EncodeWorker

__all__ = ["EncodeWorker", "Encoder", "load"]
