"""The Triton kernels: results in the interpreter, and when they are used."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scoring_tools import SMALL_TILE, check_half_precision, half_operands

from rlobj.scoring import tiles
from rlobj.scoring.rows import TorchRows

TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(
    not TRITON, reason="Triton is not installed; on Linux: pip install triton"
)


@needs_triton
@pytest.mark.parametrize(
    "which", ["not slow", pytest.param("slow or not slow", marks=pytest.mark.slow)]
)
def test_kernels_pass_their_tests_in_the_interpreter(which):
    """Runs the tests of scoring_kernels.py in a process with TRITON_INTERPRET, without plugins."""
    tests = Path(__file__).with_name("scoring_kernels.py")
    alone = {"TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", which, tests],
        capture_output=True,
        text=True,
        env={**os.environ, **alone},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@needs_triton
@pytest.mark.slow
def test_kernels_compile_for_a_gpu_on_a_machine_without_one(tmp_path):
    """For all flags, to Hopper machine code without register spilling."""
    program = """
import re, subprocess, sys
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rlobj.scoring import kernels

INTEGERS = {"columns": "i32", "stride": "i32", "out_stride": "i32", "targets": "*i64"}
FLOATS = {"factor": "fp32", "cap": "fp32", "out": "*bf16"}
FLAGS = {"BIAS", "CAP", "SLOPE", "SQUARE", "LARGEST"}
for kernel in (kernels._fold_kernel, kernels._differentiate_kernel):
    names = kernel.arg_names
    for flag in (False, True):
        fixed = {n: flag for n in names if n in FLAGS} | {"BLOCK": kernels.BLOCK}
        types = {n: {**INTEGERS, **FLOATS}.get(n, "*fp32") for n in names}
        source = ASTSource(
            fn=kernel,
            signature=types | {n: "constexpr" for n in fixed},
            constexprs={(names.index(n),): value for n, value in fixed.items()},
        )
        options = {"num_warps": kernels.WARPS}
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        assert len(built.asm["cubin"]) > 1000
        file = Path(sys.argv[1], "kernel.cubin")
        file.write_bytes(built.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        command = [tool, "--dump-resource-usage", file]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert int(re.search(r"REG:(\\d+)", output)[1]) <= 80, output
        assert "STACK:0" in output, output  # nothing is spilled
        assert "LOCAL:0" in output, output
print("compiled")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
    )
    assert done.stdout == "compiled\n", done.stderr


@needs_triton
def test_triton_computes_float32_rows_on_a_gpu_and_torch_all_others(monkeypatch):
    from rlobj.scoring.kernels import TritonRows

    gpu = torch.device("cuda")
    assert tiles.row_work(gpu, torch.float32) is TritonRows
    assert tiles.row_work(gpu, torch.float64) is TorchRows
    assert tiles.row_work(torch.device("cpu"), torch.float32) is TorchRows
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert tiles.row_work(gpu, torch.float32) is TorchRows


@pytest.mark.parametrize("chunk_bytes", [SMALL_TILE, 1 << 30], ids=["tiles", "whole-rows"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("emulated", [False, True], ids=["cpu", "as on a GPU without Triton"])
def test_half_precision_inputs_give_float32_scores(monkeypatch, emulated, dtype, chunk_bytes):
    if emulated:
        half_operands(monkeypatch)
    check_half_precision(dtype, chunk_bytes, {"min_p": 0.05}, temperature=0.9)


def test_half_precision_products_are_stored_in_float32():
    """Checked with torch's shape functions, since the products need a GPU."""
    left, right = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in [(4, 8), (8, 6)])
    out = torch.empty(4, 6, device="meta")
    assert tiles.multiply(left, right, out=out) is out
    assert tiles.accumulate(out, left, right) is out
    half = torch.empty(4, 6, dtype=torch.bfloat16, device="meta")
    assert tiles.multiply(left, right, out=half) is half
