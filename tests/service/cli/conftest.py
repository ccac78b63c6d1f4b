"""A stand-in for the service: real HTTP, documents in a dict, and faults on order."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from safetensors.numpy import load

DIM = 8


@dataclass
class StandIn:
    """What was sent, and what to answer. `faults` are answered first: (status, Retry-After or None)."""

    url: str = ""
    collections: dict[str, dict[str, Any]] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    upserts: list[list[str]] = field(default_factory=list)
    content_types: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    faults: list[tuple[int, str | None]] = field(default_factory=list)
    full_after: int | None = None  # upserts, then 507
    refuse_whole_batch: bool = False
    drop_connections: int = 0

    def upsert(self, name: str, content_type: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if name not in self.collections:
            return 404, {"message": f"no collection {name}"}
        if self.full_after is not None and len(self.upserts) >= self.full_after:
            return 507, {"message": "the disk is full"}
        documents = decode(content_type, body)
        errors = [
            {
                "index": i,
                "id": d["id"],
                "status": 422,
                "code": "empty",
                "message": "nothing in it",
                "param": None,
            }
            for i, d in enumerate(documents)
            if is_empty(d)
        ]
        if errors and (self.refuse_whole_batch or len(errors) == len(documents)):
            return 422, {"message": "refused", "errors": errors}
        accepted = [d for d in documents if not is_empty(d)]
        self.upserts.append([d["id"] for d in accepted])
        self.content_types.append(content_type)
        self.documents |= {d["id"]: d for d in accepted}
        answer: dict[str, Any] = {"upserted": len(accepted), "total": len(self.documents)}
        return (207, answer | {"errors": errors}) if errors else (200, answer)


def is_empty(document: dict[str, Any]) -> bool:
    if "vectors" in document:
        return len(document["vectors"]) == 0
    return not document["text"].strip()


def decode(content_type: str, body: bytes) -> list[dict[str, Any]]:
    if content_type == "application/json":
        return list(json.loads(body)["documents"])
    assert content_type == "application/vnd.safetensors"
    tensors = load(body)
    metadata = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])["__metadata__"]
    lists = {name: json.loads(metadata[name]) for name in metadata}
    matrices = np.split(tensors["tokens"], np.cumsum(tensors["lengths"])[:-1])
    names = {"ids": "id", "texts": "text", "payloads": "payload"}
    return [
        {"vectors": matrix} | {names[name]: values[i] for name, values in lists.items()}
        for i, matrix in enumerate(matrices)
    ]


@pytest.fixture
def service() -> Iterator[StandIn]:
    state = StandIn(collections={"c": {}})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = unquote(self.path.removeprefix("/collections/"))
            if self.path in ("/readyz", "/info"):
                self.reply(200, {"status": "ready", "settings": {"encoder": "none", "port": 1}})
            elif name in state.collections:
                self.reply(200, {"name": name, "documents": len(state.documents)})
            else:
                self.reply(404, {"message": f"no collection {name}"})

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.authorizations.append(self.headers["authorization"])
            name = unquote(self.path.split("/")[2])
            if state.drop_connections:
                state.drop_connections -= 1
                self.close_connection = True
            elif state.faults:
                status, retry_after = state.faults.pop(0)
                self.reply(
                    status, {"message": "try again"}, {"retry-after": retry_after} if retry_after else {}
                )
            elif self.path.endswith("/documents"):
                self.reply(*state.upsert(name, self.headers["content-type"], body))
            else:
                state.collections[name] = json.loads(body)
                self.reply(201, {"name": name})

        def reply(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            for header, value in {"content-length": str(len(data)), **(headers or {})}.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def own_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.delenv("MAXSIM_API_KEY", raising=False)
    return state
