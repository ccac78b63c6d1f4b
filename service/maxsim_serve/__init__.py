"""maxsim-serve: exact late-interaction reranking and search over HTTP."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("maxsim-serve")
