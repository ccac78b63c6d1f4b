"""Numbers of a request as float32: rounded once, as NumPy rounds them."""

import numpy as np

from maxsim_serve.api.matrices import as_matrix


def test_numbers_in_lists_are_rounded_to_the_nearest():
    rng = np.random.default_rng(8)
    wide = rng.standard_normal((9, 50)) * 10.0 ** rng.integers(-48, 38, (9, 50))
    wide[0, :6] = 0.0, -0.0, 2.0**-149, 2.0**-150, 1 + 2.0**-24, 3.4028234e38
    matrix = as_matrix(wide.tolist(), "query")
    assert matrix.dtype == np.float32 and matrix.shape == (9, 50)
    assert (matrix.view(np.uint32) == wide.astype(np.float32).view(np.uint32)).all()


def test_what_float32_cannot_hold_is_infinite():
    assert as_matrix([[1e39, -1e300, 1.0]], "query").tolist() == [[np.inf, -np.inf, 1.0]]
