"""Where long queries wait for the device: a place each, for as long as somebody may read it."""

import gc

import numpy as np
import pytest
import torch

from maxsim_serve.engine.long_queries import STEP, LongQueries

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)


@pytest.fixture
def queries():
    return LongQueries(2, torch.device("cpu"))


def placed(queries, rows, dim=128, dtype=HALF):
    query = np.repeat(np.arange(1, 1 + rows, dtype=SINGLE)[:, None], dim, axis=1)
    array = queries.placed(query, dtype)
    assert array.dtype == dtype and np.array_equal(array, query.astype(dtype))
    return array


def at(queries, place, rows, dim=128, dtype=torch.float16):
    return queries._places[place].view(dtype)[: rows * dim].view(rows, dim)


@pytest.mark.parametrize("rows", [65, 127, 128, 129, 1000])
def test_rows_stand_in_their_place_and_zeros_behind_them(queries, rows):
    counted = -(-rows // STEP) * STEP
    queries._places.fill_(0x3C)
    query = placed(queries, rows)
    there = at(queries, queries.place(query, torch.float16, 1), counted)
    assert torch.equal(there[:rows], torch.from_numpy(query)) and not there[rows:].any()
    assert there.data_ptr() == query.ctypes.data


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [HALF, SINGLE], ids=str)
@pytest.mark.parametrize("own", [False, True])
def test_a_query_of_another_dtype_or_from_elsewhere_is_copied(queries, dtype, stored, own):
    queries._places.fill_(0x3C)
    query = placed(queries, 130, 16, dtype) if own else np.full((130, 16), 7, dtype)
    place = queries.place(query, stored, 1)
    assert (place == 1) == (not own or str(dtype) != str(stored).removeprefix("torch."))
    there = at(queries, place, 256, 16, stored)
    assert torch.equal(there[:130], torch.from_numpy(query).to(stored)) and not there[130:].any()


def test_a_place_is_free_again_when_nobody_has_the_array_any_more(queries):
    arrays = [placed(queries, 100) for _ in range(16)]
    assert queries.placed(np.ones((100, 128), HALF), HALF) is None
    view, place = arrays.pop()[3:].reshape(-1)[1:], queries.place(arrays[-1], torch.float16, 0)
    gc.collect()
    assert queries.placed(np.ones((100, 128), HALF), HALF) is None  # a view is left of it
    del view
    last = placed(queries, 100)
    assert queries.placed(np.ones((100, 128), HALF), HALF) is None
    del arrays
    assert len(queries._free) == 15
    assert queries.place(last, torch.float16, 0) not in (0, 1, place)


def test_what_is_too_large_has_no_place(queries):
    assert queries.placed(np.ones((1024, 512), HALF), HALF) is not None
    assert queries.placed(np.ones((1025, 512), HALF), HALF) is None
    assert not queries.takes((1 << 20) + 1)
