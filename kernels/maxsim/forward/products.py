"""Inner products of float32 rows on tensor cores that know no float32, in one order for every kernel."""

import triton
import triton.language as tl

__all__ = ["multiply"]


@triton.jit
def _thirds(x):
    """float32 → three bfloat16 whose sum it is, largest first; exact above the smallest normal numbers."""
    first = x.to(tl.bfloat16)
    rest = x - first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    third = (rest - second.to(tl.float32)).to(tl.bfloat16)
    return first, second, third


@triton.jit
def multiply(a, b, QUERY_LEFT: tl.constexpr, EXACT: tl.constexpr):
    """a [M, K] · b [K, N] → float32 [M, N]; QUERY_LEFT says which of them holds the query rows.

    Half precision goes to the tensor core as it is. A float32 product is the sum of nine of thirds, of
    which six reach float32's own error. They are added smallest first, in an order that depends on whose
    third is whose, not on which side it stands: documents on the M side give the bits of documents on N.
    EXACT: float32 multiply-adds instead, for the interpreter.
    """
    if a.dtype != tl.float32 or EXACT:
        return tl.dot(a, b, input_precision="ieee")
    a1, a2, a3 = _thirds(a)
    b1, b2, b3 = _thirds(b)
    if QUERY_LEFT:
        part = tl.dot(a3, b1)
        part = tl.dot(a1, b3, part)
        part = tl.dot(a2, b2, part)
        part = tl.dot(a2, b1, part)
        part = tl.dot(a1, b2, part)
    else:
        part = tl.dot(a1, b3)
        part = tl.dot(a3, b1, part)
        part = tl.dot(a2, b2, part)
        part = tl.dot(a1, b2, part)
        part = tl.dot(a2, b1, part)
    return tl.dot(a1, b1, part)
