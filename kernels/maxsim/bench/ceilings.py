"""What this GPU can do at the most: bytes read and copied a second, matrix arithmetic by dtype.

A limit is the best of its runs. Anything below is measured against these, not against a datasheet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from maxsim.bench.gpu_timing import GpuClock, events_ms

__all__ = ["DTYPE_NAMES", "Ceilings", "float32_products", "measure"]

DTYPE_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}

BUFFER_BYTES = 2 * 2**30
MATMUL_SIZE = 8192
RUNS = 12
# Elements a step, warps, and programs on each multiprocessor (0: one program a step, no loop).
READ_SETTINGS = tuple(
    (block, warps, programs)
    for block, warps in ((2048, 4), (4096, 4), (4096, 8), (8192, 8), (16384, 16))
    for programs in (0, 2, 4, 8)
)


@dataclass(frozen=True)
class Ceilings:
    """Rates of the machine: TB/s of 10¹² bytes, TFLOP/s of 10¹² operations, by the name of the dtype.

    copy counts the bytes read and the bytes written; float32 products are real ones, TF32 is off.
    empty_kernel_us is what the benches' own clock shows for a kernel that does nothing.
    """

    copy_tb_per_s: float
    read_tb_per_s: float
    matmul_tflop_per_s: dict[str, float]
    empty_kernel_us: float

    def limit_ms(self, moved_bytes: int, flop: int, dtype: str) -> float:
        """The time below which nothing can go that must move so much and compute so much."""
        read_s = moved_bytes / (self.read_tb_per_s * 1e12)
        compute_s = flop / (self.matmul_tflop_per_s[dtype] * 1e12)
        return max(read_s, compute_s) * 1e3


def measure(clock: GpuClock) -> Ceilings:
    """Measure all of them on the current device, in a few seconds and about 4 GiB."""
    from maxsim.bench import probe_kernels

    source = torch.rand(BUFFER_BYTES // 4, device="cuda")
    copy = partial(torch.empty_like(source).copy_, source)
    copy_ms = min(events_ms(copy) for _ in range(RUNS))
    del copy
    read_ms = _read_ms(source)
    matmul = {name: _matmul_tflop_per_s(dtype) for dtype, name in DTYPE_NAMES.items()}
    empty_ms = clock.cold_ms(lambda: probe_kernels.nothing[(1,)](source))
    return Ceilings(
        copy_tb_per_s=2 * BUFFER_BYTES / copy_ms / 1e9,
        read_tb_per_s=BUFFER_BYTES / read_ms / 1e9,
        matmul_tflop_per_s=matmul,
        empty_kernel_us=empty_ms * 1e3,
    )


def _read_ms(source: Tensor) -> float:
    """The fastest setting's fastest pass over source. Raises AssertionError when one did not read it all."""
    from maxsim.bench import probe_kernels

    processors = torch.cuda.get_device_properties(source.device).multi_processor_count
    wanted = float(source.double().sum())
    best_ms = min(events_ms(lambda: source.sum()) for _ in range(RUNS))
    for block, warps, programs in READ_SETTINGS:
        grid = (programs * processors or source.numel() // block,)
        sums = torch.empty(grid, device="cuda")

        read = partial(
            probe_kernels.read_only[grid], source, sums, source.numel(), BLOCK=block, num_warps=warps
        )
        read()
        found = float(sums.double().sum())
        assert abs(found - wanted) < 1e-3 * wanted, f"the read kernel summed {found}, not {wanted}"
        best_ms = min(best_ms, *(events_ms(read) for _ in range(RUNS)))
    return best_ms


def _matmul_tflop_per_s(dtype: torch.dtype) -> float:
    # Random values: the chip clocks down on them, and up again on zeros.
    left, right = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, device="cuda", dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    with float32_products("highest"):
        best_ms = min(events_ms(lambda: torch.mm(left, right, out=product)) for _ in range(RUNS))
    return 2 * MATMUL_SIZE**3 / best_ms / 1e9


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Inside, PyTorch makes float32 products so: "highest" keeps all bits, "high" may use TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
