"""The HTTP face: parses, checks, hands on to engine and store, answers. Never touches tensors.

build_starting_api(metrics)     starting: until the store is loaded
build_api(deps)     factory
├── middleware      request id, metrics, API key
├── rerank, search, collections, documents, operations      the routes, one module a family
│   └── query, uploads, answers, rows                       what they share
├── schemas, content, matrices, bulk, splitter              bodies: their shape, and how they are read
└── wire            errors as status and body, in one place
"""

from .deps import ApiDeps, Limits
from .factory import build_api
from .starting import build_starting_api

__all__ = ["ApiDeps", "Limits", "build_api", "build_starting_api"]
