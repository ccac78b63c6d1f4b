"""The scenarios of `scenarios.yaml`, and the HTTP messages that each of them sends."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import yaml
from passages import passages

__all__ = ["Catalogue", "CollectionPlan", "Scenario", "collection_of", "is_upsert", "messages", "read"]

FILE = Path(__file__).with_name("scenarios.yaml")
_BODIES_BYTES = 8 << 20
_BODIES_MAX = 64
_UPSERT_BODIES = 32


@dataclass(frozen=True)
class CollectionPlan:
    """The collection that is filled before: `documents` random passages of `mean_tokens` rows [dim]."""

    documents: int
    dim: int
    mean_tokens: int


@dataclass(frozen=True)
class Scenario:
    """See `scenarios.yaml` for the meaning of each field."""

    name: str
    candidates: int
    query_tokens: int
    form: Literal["json", "msgpack"]
    tier: Literal["host", "gpu"]
    top_n: int
    objective_p99_ms: float
    upsert_share: float
    upsert_documents: int

    def __post_init__(self) -> None:
        wrong = {
            "candidates": self.candidates < 1,
            "query_tokens": self.query_tokens < 1,
            "form": self.form not in ("json", "msgpack"),
            "tier": self.tier not in ("host", "gpu"),
            "top_n": self.top_n < 1,
            "objective_p99_ms": self.objective_p99_ms <= 0,
            "upsert_share": not 0 <= self.upsert_share < 1,
            "upsert_documents": self.upsert_documents < 1,
        }
        for field, is_wrong in wrong.items():
            if is_wrong:
                value = getattr(self, field)
                raise ValueError(f"scenario {self.name}: {field} = {value!r}; see the top of {FILE.name}")

    @property
    def results(self) -> int:
        """How many results an answer has."""
        return min(self.top_n, self.candidates)


@dataclass(frozen=True)
class Catalogue:
    collection: CollectionPlan
    scenarios: Mapping[str, Scenario]


def read(path: Path = FILE) -> Catalogue:
    """Raises ValueError, naming the scenario and the key, for one that means nothing."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    known = {field.name for field in fields(Scenario)} - {"name"}
    scenarios = {}
    for name, given in data["scenarios"].items():
        if unknown := given.keys() - known:
            raise ValueError(f"scenario {name}: no key {sorted(unknown)[0]!r}; there are {sorted(known)}")
        scenarios[name] = Scenario(name=name, **{**data["defaults"], **given})
    return Catalogue(CollectionPlan(**data["collection"]), scenarios)


def collection_of(tier: str) -> str:
    """The name of the collection that the scenarios of a tier use."""
    return f"load-{tier}"


def is_upsert(scenario: Scenario, number: int) -> bool:
    """Whether request `number` is an upsert: they are spread evenly over the others."""
    share = scenario.upsert_share
    return int((number + 1) * share) > int(number * share)


@lru_cache(maxsize=4)
def messages(scenario: Scenario, collection: CollectionPlan) -> tuple[list[bytes], list[bytes]]:
    """Whole HTTP requests, made before the clock runs: reranks of different queries and ids, and upserts."""
    rng = np.random.default_rng(11)
    candidates = min(scenario.candidates, collection.documents)
    body_bytes = 14 * candidates + 2 * collection.dim * scenario.query_tokens
    reranks = []
    for _ in range(max(8, min(_BODIES_MAX, _BODIES_BYTES // body_bytes))):
        query = rng.standard_normal((scenario.query_tokens, collection.dim)).astype(np.float16)
        ids = [f"passage-{i}" for i in rng.permutation(collection.documents)[:candidates]]
        body = {"query": _vectors(query, scenario.form), "ids": ids, "top_n": scenario.top_n}
        reranks.append(_message("POST", f"/c/{collection_of(scenario.tier)}/rerank", body, scenario.form))
    upserts = []
    for _ in range(_UPSERT_BODIES if scenario.upsert_share else 0):
        count = min(scenario.upsert_documents, collection.documents)
        places = rng.choice(collection.documents, count, replace=False)  # an id may be sent once a batch
        vectors = passages(rng, count, collection.dim, collection.mean_tokens)
        documents = [
            {"id": f"passage-{i}", "vectors": _vectors(v, scenario.form)}
            for i, v in zip(places, vectors, strict=True)
        ]
        path = f"/collections/{collection_of(scenario.tier)}/documents"
        upserts.append(_message("PUT", path, {"documents": documents}, scenario.form))
    return reranks, upserts


def _vectors(rows: np.ndarray, form: str) -> dict[str, object]:
    data = rows.tobytes()
    return {
        "data": data if form == "msgpack" else base64.b64encode(data).decode(),
        "shape": list(rows.shape),
        "dtype": "float16",
    }


def _message(method: str, path: str, body: object, form: str) -> bytes:
    data = msgspec.msgpack.encode(body) if form == "msgpack" else msgspec.json.encode(body)
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: loadtest\r\ncontent-type: application/{form}\r\n"
        f"accept: application/{form}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data
