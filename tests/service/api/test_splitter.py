"""The cutter of large JSON bodies: it cuts where msgspec does, or not at all."""

import json
import random

import pytest

from maxsim_serve.api import splitter


@pytest.mark.parametrize("window_bytes", [1, 3, 64, 1 << 20])
def test_cut_pieces_are_the_documents(monkeypatch, window_bytes):
    monkeypatch.setattr(splitter, "_WINDOW_BYTES", window_bytes)
    texts = ["", "}", '"', '\\"{', "\\", '"}, {"', "]", "\n", "é🦊"]
    documents = [
        {"id": a, "payload": {"deep": [{"x": b}, {}]}, "vectors": [[1.5, -2e-3]]}
        for a in texts
        for b in texts
    ]
    for space in ("", " ", "\n\t"):
        body = {"first": "x{", "documents": documents, "last": {"a": [1]}}
        data = json.dumps(body, separators=(f"{space},{space}", f"{space}:{space}")).encode()
        cut = splitter.split(data)
        assert cut is not None
        rest, pieces = cut
        assert json.loads(rest) == body | {"documents": []}
        assert [json.loads(bytes(piece)) for piece in pieces] == documents


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"documents":[]}',
        b'{"documents":[{}',
        b'{"documents":[{}}',
        b'{"documents":[{},]}',
        b'{"documents":[{} {}]}',
        b'{"documents":[1,{}]}',
        b'{"documents":[{},1]}',
        b'{"meta":{},"documents":[{}]}',
        b'{"other":[{}]}',
        b'{"x":{"documents":[{}]}}',
        b'{"documents":[{"a":"}]}',
    ],
)
def test_anything_unexpected_is_left_to_the_decoder(data):
    assert splitter.split(data) is None


def test_damage_never_raises_and_never_invents_documents():
    random.seed(0)
    good = json.dumps({"documents": [{"id": 'a"{', "vectors": [[1.0]]}, {"id": "\\"}]}).encode()
    for _ in range(3000):
        damaged = bytearray(good)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(len(damaged))] = random.choice(b'{}[]",:\\ a')
        cut = splitter.split(bytes(damaged))
        if cut is None:
            continue
        rest, pieces = cut
        try:
            parts = [json.loads(bytes(piece)) for piece in pieces]
            frame = json.loads(rest)
        except ValueError:
            continue
        if frame["documents"] == []:
            assert json.loads(damaged)["documents"] == parts
