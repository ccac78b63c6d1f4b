"""Compile the forward kernels for a GPU that is not here, and print what became of each as a line of JSON.

    python tests/kernels/compile_ahead.py 90      # or 80

Records what `maxsim.forward` would launch for every case of its warm-up, and compiles that. Must run
without TRITON_INTERPRET; `test_forward_compile` holds the figures.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from maxsim.forward import backend, choose, prepare, prepare_hopper, warmup

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
NAMES = {
    FP16: "fp16",
    BF16: "bf16",
    FP32: "fp32",
    torch.float64: "fp64",
    torch.int64: "i64",
    torch.bool: "i1",
}
MULTIPLYING = ("short_query", "short_query_hopper", "long_query", "long_query_hopper")
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"

# (width, dtype) → whether to compile a configuration in its masked, mixed or chunked form.
WANTED = {
    (128, FP16): lambda name, masked, mixed, chunked: not mixed or not (masked or chunked),
    (128, BF16): lambda name, masked, mixed, chunked: (
        not (masked or mixed or chunked) and name != "hopper-256"
    ),
    (128, FP32): lambda name, masked, mixed, chunked: not masked,
    (256, FP16): lambda name, masked, mixed, chunked: not (masked or mixed or chunked),
    **{
        (dim, FP16): lambda name, masked, mixed, chunked: name.startswith("short") and not (masked or mixed)
        for dim in (96, 320, 1024)
    },
}


def recorded(capability: int) -> Iterator[tuple[dict[str, Any], Any, tuple[Any, ...], tuple[Any, ...], Any]]:
    """(what it is, function, arguments, constants, options) of every launch on a GPU of this capability."""
    choose._hopper = lambda device: capability == 90
    prepare.hopper_or_newer = lambda device: capability >= 90
    prepare_hopper.processors = lambda device: 132
    launches = []
    backend.enqueue = lambda each, operands: launches.extend(
        (launch.kernel.function, launch.arguments(operands), launch.constants, launch.options)
        for launch in each
    )
    seen = set()
    for (dim, dtype), wanted in WANTED.items():
        for choice, left, right in warmup.cases([dim], [dtype], torch.device("cpu")):
            masked, mixed = right.layout.masked, left.layout.dtype != dtype
            if not wanted(choice.name, masked, mixed, choice.chunked):
                continue
            launches.clear()
            backend.run(choice, left, right, None, None, torch.empty(left.layout.items, right.layout.items))
            for function, arguments, constants, options in launches:
                what = {
                    "kernel": function.__name__,
                    "config": choice.name if function.__name__ in MULTIPLYING else "",
                    "dim": dim,
                    "dtypes": f"{NAMES[left.layout.dtype]}-{NAMES[dtype]}",
                    "masked": masked,
                    "chunked": choice.chunked,
                    "constants": str(constants),
                }
                name = (function, what["dtypes"] if what["config"] else "", constants)
                if name not in seen:
                    seen.add(name)
                    yield what, function, arguments, constants, options


def compiled(function: Any, arguments: tuple[Any, ...], constants: tuple[Any, ...], options: Any,
             target: GPUTarget) -> Any:  # fmt: skip
    """Compile as a launch would: sizes unknown, token tables at addresses that are multiples of 16."""
    signature, attributes, values = {}, {}, {}
    for i, (parameter, argument) in enumerate(zip(function.params, arguments, strict=False)):
        if isinstance(argument, torch.Tensor):
            signature[parameter.name] = f"*{NAMES[argument.dtype]}"
            if not parameter.do_not_specialize_on_alignment:
                attributes[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(argument, int):
            signature[parameter.name] = parameter.annotation_type
        else:
            box = ", ".join(map(str, argument.frame.block_shape))
            signature[parameter.name] = (
                f"tensordesc<{NAMES[argument.base.dtype]}[{box}],{argument.frame.layout!r}>"
            )
    for parameter, constant in zip(function.params[len(arguments) :], constants, strict=True):
        signature[parameter.name] = "constexpr"
        values[parameter.name] = constant
    source = GluonASTSource if function.is_gluon() else ASTSource
    return triton.compile(
        source(fn=function, signature=signature, constexprs=values, attrs=attributes),
        target=target,
        options=options.keywords(),
    )


def facts(kernel: Any) -> dict[str, Any]:
    """Instructions by PTX and SASS, registers a thread, bytes of shared memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()

        def said(*command: str | Path) -> str:
            return subprocess.run([*command, cubin.name], capture_output=True, text=True, check=True).stdout

        usage, sass = said(TOOLS / "cuobjdump", "-res-usage"), said(TOOLS / "nvdisasm", "-c")
    ptx = kernel.asm["ptx"]

    def count(pattern: str, text: str) -> int:
        return len(re.findall(pattern, text))

    return {
        "wgmma": sorted(set(re.findall(r"wgmma\.mma_async\S*?\.(m64n\d+k\d+)", ptx))),
        "mma": count(r"\bmma\.sync", ptx),
        "tf32": count(r"\.tf32", ptx),
        "tma": count(r"cp\.async\.bulk\.tensor", ptx),
        "cp_async": count(r"cp\.async\.c[ag]", ptx),
        "cp_async_16_bytes": count(r"\bLDGSTS\.E\.(?:BYPASS\.)?(?:LTC128B\.)?128", sass),
        "load_16_bytes": count(r"\bLDG\.E\.128", sass),
        "setmaxnreg": count(r"\bUSETMAXREG", sass),
        "spills": count(r"\b(?:LDL|STL)\b", sass),
        "registers": max(int(n) for n in re.findall(r"REG:(\d+)", usage)),
        "stack_bytes": max(int(n) for n in re.findall(r"STACK:(\d+)", usage)),
        "shared_bytes": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
    }


if __name__ == "__main__":
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    for what, *rest in recorded(target.arch):
        print(json.dumps(what | facts(compiled(*rest, target))), flush=True)
