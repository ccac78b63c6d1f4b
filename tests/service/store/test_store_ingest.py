"""What may become a document: every check before the writer's turn, each fault named with its index."""

import numpy as np
import pytest
import torch

from maxsim_serve.errors import InvalidInput
from maxsim_serve.store import (
    MAX_ID_BYTES,
    CollectionSpec,
    NewDocument,
    checked_vectors,
    normalized,
)
from maxsim_serve.store.ingest import prepare

DIM = 16
GOOD = np.ones((3, DIM), np.float32)


def poked(value, dtype=np.float32):
    vectors = np.ones((3, DIM), dtype)
    vectors[2, 7] = value
    return vectors


BAD_VECTORS = {
    "nan": (poked(np.nan), "row 2, column 7 is nan"),
    "inf": (poked(np.inf), "row 2, column 7 is inf"),
    "-inf in float16": (poked(-np.inf, np.float16), "row 2, column 7 is -inf"),
    "nan in float64": (poked(np.nan, np.float64), "row 2, column 7 is nan"),
    "too large for float16": (poked(70_000), "row 2, column 7 is 70000.0, and the largest float16 is 65504"),
    "too large for float32": (poked(1e300, np.float64), r"row 2, column 7 is 1e\+300"),
    "one row, not a matrix": (np.ones(DIM, np.float32), r"shape \[16\] must be \[rows, 16\]"),
    "three dimensions": (np.ones((1, 2, DIM), np.float32), r"shape \[1, 2, 16\]"),
    "no rows": (np.empty((0, DIM), np.float32), "no rows"),
    "too wide": (np.ones((3, DIM + 1), np.float32), "rows are 17 wide; this collection's dim is 16"),
    "int64": (np.ones((3, DIM), np.int64), "dtype int64 is not one of float16, float32, float64, int8"),
    "big-endian": (np.ones((3, DIM), ">f4"), "dtype >f4 is not one of"),
    "bool": (np.ones((3, DIM), bool), "dtype bool"),
    "text": (np.full((3, DIM), "x"), "dtype <U1"),
    "objects": (np.full((3, DIM), None), "dtype object"),
}
BAD_IDS = {
    "empty": ("", "has 0 bytes"),
    "too long": ("x" * (MAX_ID_BYTES + 1), "has 1,025 bytes of UTF-8; use 1 to 1,024"),
    "too long in UTF-8 only": ("é" * 513, "has 1,026 bytes"),
    "lone surrogate": ("a\ud800", "lone surrogate"),
}


@pytest.mark.parametrize("case", BAD_VECTORS)
def test_bad_vectors_are_rejected_by_index_and_the_rest_stand(case):
    vectors, message = BAD_VECTORS[case]
    documents = [NewDocument("a", GOOD), NewDocument("b", vectors), NewDocument("c", GOOD * 2)]
    prepared = prepare(CollectionSpec("papers", DIM), documents)
    assert prepared.accepted == ["a", "c"]
    (rejected,) = prepared.rejected
    assert (rejected.index, rejected.id, rejected.error.param) == (1, "b", "documents[1].vectors")
    with pytest.raises(InvalidInput, match=r"documents\[1\]\.vectors: " + message):
        raise rejected.error
    expected = np.concatenate([GOOD, GOOD * 2]).astype(np.float16)
    assert prepared.packed.tobytes() == expected.tobytes()


@pytest.mark.parametrize("case", BAD_IDS)
def test_bad_ids_are_rejected(case):
    id, message = BAD_IDS[case]
    (rejected,) = prepare(CollectionSpec("papers", DIM), [NewDocument(id, GOOD)]).rejected
    assert rejected.error.param == "documents[0].id"
    with pytest.raises(InvalidInput, match=message):
        raise rejected.error


def test_the_later_of_two_equal_ids_is_rejected_naming_both():
    documents = [NewDocument(id, GOOD) for id in ("a", "b", "a", "c", "a")]
    prepared = prepare(CollectionSpec("papers", DIM), documents)
    assert prepared.accepted == ["a", "b", "c"]
    assert [(r.index, r.error.message) for r in prepared.rejected] == [
        (n, f"documents[{n}].id 'a' is also the id of documents[0]; send each id once") for n in (2, 4)
    ]


def test_a_text_that_is_no_text_is_rejected():
    (rejected,) = prepare(CollectionSpec("papers", DIM), [NewDocument("a", GOOD, "\udfff")]).rejected
    assert rejected.error.param == "documents[0].text"


def test_faults_keep_the_order_of_the_request():
    documents = [NewDocument("a", poked(np.nan)), NewDocument("", GOOD), NewDocument("c", poked(np.inf))]
    assert [r.index for r in prepare(CollectionSpec("papers", DIM), documents).rejected] == [0, 1, 2]


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("normalize", [False, True], ids=["as they are", "normalized"])
def test_every_input_dtype_is_converted_alike_in_one_batch(stored, normalize):
    rng = np.random.default_rng(7)
    spec = CollectionSpec("papers", 24, stored, normalize)
    arrays = []
    for n, rows in enumerate([1, 17, 63, 111, 2, 5, 4000]):  # the last alone passes the size of a chunk
        dtype = ["float32", "float16", "float64", "int8"][n % 4]
        arrays.append((rng.standard_normal((rows, 24)) * 9 + 0.6).astype(dtype))
    arrays[3] = np.where(arrays[3] == 0, 1, arrays[3]).astype("int8")
    arrays[1] = np.frombuffer(arrays[1].tobytes(), "float16").reshape(17, 24)  # not writeable
    arrays[2] = arrays[2][::-1]  # not contiguous
    prepared = prepare(spec, [NewDocument(str(n), a) for n, a in enumerate(arrays)])
    assert not prepared.rejected and prepared.lengths.tolist() == [len(a) for a in arrays]
    ours = torch.from_numpy(prepared.packed).view(spec.torch_dtype).reshape(-1, 24).double().numpy()
    exact = np.concatenate(arrays).astype(np.float64)
    if normalize:
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    else:
        exact = torch.from_numpy(exact).to(spec.torch_dtype).double().numpy()
    eps = torch.finfo(spec.torch_dtype).eps if normalize else 0
    np.testing.assert_allclose(ours, exact, rtol=2 * eps, atol=eps / 8)


def test_inputs_are_left_as_they_were():
    vectors = np.random.default_rng(1).standard_normal((5, DIM), dtype=np.float32)
    before = vectors.copy()
    prepare(CollectionSpec("papers", DIM, normalize=True), [NewDocument("a", vectors)])
    normalized(vectors)
    np.testing.assert_array_equal(vectors, before)


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e-15, 1.0, 1e18, 1e25, 1e37])
def test_rows_of_any_magnitude_are_normalized(scale):
    vectors = (np.random.default_rng(2).standard_normal((17, DIM)) * scale).astype(np.float32)
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    ours = normalized(vectors)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact, rtol=1e-6, atol=1e-7)


def test_a_row_of_zeros_has_no_direction():
    vectors = np.ones((3, DIM), np.float32)
    vectors[1] = 0
    with pytest.raises(InvalidInput, match="query: row 1 is zero") as caught:
        normalized(vectors, field="query")
    assert caught.value.param == "query"
    spec = CollectionSpec("papers", DIM, normalize=True)
    prepared = prepare(spec, [NewDocument("a", GOOD), NewDocument("b", vectors)])
    assert prepared.accepted == ["a"]
    assert "documents[1].vectors: row 1 is zero" in prepared.rejected[0].error.message
    assert not prepare(CollectionSpec("papers", DIM), [NewDocument("b", vectors)]).rejected


def test_checked_vectors_passes_the_same_array_on():
    assert checked_vectors(GOOD, dim=DIM, field="query") is GOOD
    with pytest.raises(InvalidInput, match="query: rows are 16 wide; this collection's dim is 24") as caught:
        checked_vectors(GOOD, dim=24, field="query")
    assert caught.value.param == "query"
    with pytest.raises(InvalidInput, match="query: row 2, column 7 is nan"):
        checked_vectors(poked(np.nan), dim=DIM, field="query")


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int8], ids=lambda dtype: dtype.__name__
)
def test_every_finite_value_passes_and_no_other(dtype):
    limits = np.iinfo(dtype) if dtype is np.int8 else np.finfo(dtype)
    for value in (limits.min, limits.max, 0, -1):
        checked_vectors(poked(value, dtype), dim=DIM, field="query")
    if dtype is np.int8:
        return
    for value in (limits.tiny / 2, -0.0):
        checked_vectors(poked(value, dtype), dim=DIM, field="query")
    for value, name in ((np.nan, "nan"), (-np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")):
        wide = np.repeat(poked(value, dtype), 2, axis=0)[::2]  # not contiguous
        with pytest.raises(InvalidInput, match=f"query: row 2, column 7 is {name};"):
            checked_vectors(wide, dim=DIM, field="query")
