"""The compiled writer of results: to the byte what msgspec writes, or nothing."""

import msgspec
import numpy as np
import pytest

from maxsim_serve.api import rerank
from maxsim_serve.api import rows as module
from maxsim_serve.api.rows import rows
from maxsim_serve.api.schemas import Result
from maxsim_serve.engine import Ranking

pytestmark = pytest.mark.skipif(not module.compiled, reason="the writer is not built")

FORMATS = {"json": msgspec.json, "msgpack": msgspec.msgpack}


def ranking(scores, positions=None):
    scores = np.asarray(scores, np.float32)
    positions = np.arange(len(scores)) if positions is None else positions
    return Ranking(positions, scores, None, np.empty(0, np.int64), len(scores), 0, {}, "none", 0.0)


def by_msgspec(ranked, ids, form):
    return FORMATS[form].encode(
        [
            Result(score, position, ids[position])
            for score, position in zip(ranked.scores.tolist(), ranked.positions.tolist(), strict=True)
        ]
    )


def written(ranked, ids, form):
    raw = rows(ranked, ids, msgpack=form == "msgpack")
    return None if raw is None else bytes(raw)


def powers():
    steps = np.exp2(np.arange(-10, 24)).astype(np.float32)
    up, down = np.nextafter(steps, np.float32(np.inf)), np.nextafter(steps[1:], np.float32(0))
    return np.concatenate([steps, up, down, [np.nextafter(np.float32(2**24), np.float32(0))]])


SCORES = {
    "powers of two and their neighbours": powers(),
    "a tie in the last digit": 533 + np.arange(1, 1 << 14, 2) / (1 << 14),
    "whole numbers": np.float32([0.0, -0.0, 1, -7, 99_999, 16_777_215]),
    "every size": (lambda rng: rng.choice([-1, 1], 100_000) * np.exp2(rng.uniform(-10, 24, 100_000)))(
        np.random.default_rng(5)
    ).clip(-(2**24 - 1), 2**24 - 1),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
def test_scores_are_written_as_msgspec_writes_them(scores, form):
    ranked = ranking(scores, np.zeros(len(scores), np.int64))
    assert written(ranked, ["a"], form) == by_msgspec(ranked, ["a"], form)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("count", [0, 1, 15, 16, 129, 257, 65_537], ids="k{}".format)
def test_any_number_of_results_in_any_order(count, form, rng):
    ids = [f"{'é😀x'[: i % 4]}{'a' * (i % 300)}{i}" for i in range(count)]
    ranked = ranking(rng.uniform(1, 32, count), rng.permutation(count))
    assert written(ranked, ids, form) == by_msgspec(ranked, ids, form)


@pytest.mark.parametrize("length", [1, 31, 32, 255, 256, 1024, 65_535], ids="n{}".format)
def test_ids_of_any_length_in_messagepack(length):
    ranked, ids = ranking([1.0]), ["\n" * length]
    assert written(ranked, ids, "msgpack") == by_msgspec(ranked, ids, "msgpack")


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf, 2.0**24, 2.0**-11, -1e-30])
def test_a_score_that_json_shows_otherwise_is_refused(score):
    assert written(ranking([1.0, score]), ["a", "b"], "json") is None


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_messagepack_refuses_what_is_not_finite(score):
    assert written(ranking([1.0, score]), ["a", "b"], "msgpack") is None


@pytest.mark.parametrize("id", ['say "no"', "back\\slash", "new\nline", "\x00", "\x1f"])
def test_an_id_to_escape_is_refused(id):
    assert written(ranking([1.0, 2.0]), ["a", id], "json") is None


def test_an_id_that_is_no_unicode_is_an_error():
    with pytest.raises(UnicodeEncodeError):
        rows(ranking([1.0]), ["\ud800"], msgpack=False)


def test_positions_are_checked():
    for position in (-1, 2):
        with pytest.raises(IndexError, match=f"position {position} of 2 ids"):
            rows(ranking([1.0], np.array([position])), ["a", "b"], msgpack=False)
    with pytest.raises(ValueError, match="as many scores"):
        rows(ranking([1.0], np.arange(2)), ["a", "b"], msgpack=False)


@pytest.mark.parametrize("form", FORMATS)
def test_an_answer_has_the_same_results_without_the_writer(service, rng, monkeypatch, form):
    matrices = {id: rng.standard_normal((3, 16)).tolist() for id in ("a/1", "é", "b")}
    documents = [{"id": id, "vectors": matrix} for id, matrix in matrices.items()]
    assert service("PUT", "/collections/default/documents", json={"documents": documents}).is_success
    body = {"query": matrices["b"], "ids": ["a/1", "gone", "é", "b", "a/1"]}
    raws = []

    def noted(*args, **kwargs):
        raws.append(rows(*args, **kwargs))
        return raws[-1]

    monkeypatch.setattr(rerank, "rows", noted)

    def results():
        answer = service("POST", "/rerank", json=body, headers={"accept": f"application/{form}"})
        return FORMATS[form].decode(answer.content)["results"]

    compiled = results()
    monkeypatch.setattr(module, "compiled", False)
    assert results() == compiled
    assert [raw is None for raw in raws] == [False, True]
