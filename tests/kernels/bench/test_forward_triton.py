"""What of the GPU bench touches Triton, as far as a machine without a GPU can tell."""

from types import SimpleNamespace

import pytest

triton = pytest.importorskip("triton")


@pytest.mark.parametrize("setting", [(2048, 4), (4096, 4), (4096, 8), (8192, 8), (16384, 16)], ids=str)
def test_the_read_kernel_loads_16_bytes_at_a_time_on_hopper(setting):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    from maxsim.bench import probe_kernels
    from maxsim.bench.ceilings import READ_SETTINGS

    block, warps = setting
    assert setting in {chosen[:2] for chosen in READ_SETTINGS}
    source = ASTSource(
        # From the plain function: under TRITON_INTERPRET the decorated one cannot be compiled.
        fn=JITFunction(probe_kernels.read_only.fn),
        signature={"source": "*fp32", "sums": "*fp32", "count": "i32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": block},
        attrs={(i,): [["tt.divisibility", 16]] for i in range(3)},
    )
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]
    loads = [line for line in ptx.splitlines() if "ld.global" in line]
    assert loads and all(".v4." in line for line in loads)


def test_configurations_are_compiled_before_they_are_tuned(monkeypatch):
    from triton.runtime.autotuner import Autotuner

    from maxsim.bench.parallel_compile import parallel_compile

    configs = [SimpleNamespace(all_kwargs=lambda block=block: {"BLOCK": block}) for block in (16, 32)]
    monkeypatch.setattr(Autotuner, "prune_configs", lambda tuner, kwargs: configs)
    before = Autotuner.prune_configs
    compiled = []

    def warmup(*args, **kwargs):
        compiled.append((args, kwargs))
        if kwargs["BLOCK"] == 32:
            raise ValueError("out of shared memory")

    tuner = SimpleNamespace(fn=SimpleNamespace(warmup=warmup), nargs={"x": 1, "y": 2})
    with parallel_compile():
        assert Autotuner.prune_configs(tuner, {"grid": (7,), "warmup": False, "D": 128}) == configs
    assert compiled == [((1, 2), {"grid": (7,), "D": 128, "BLOCK": block}) for block in (16, 32)]
    assert Autotuner.prune_configs is before
