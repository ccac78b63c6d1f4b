"""Two Triton kernels that measure the machine, not us: one only reads, one does nothing.

Imports Triton, so it is imported only where a GPU is.
"""

import triton
import triton.language as tl


@triton.jit
def read_only(source, sums, count, BLOCK: tl.constexpr):
    """Sum source, float32 [count], each program a part into sums. BLOCK divides count, below 2³¹."""
    program = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(program * BLOCK, count, tl.num_programs(0) * BLOCK):
        total += tl.load(source + first + tl.arange(0, BLOCK))
    tl.store(sums + program, tl.sum(total))


@triton.jit
def nothing(target):
    """Take a pointer and leave it alone."""
