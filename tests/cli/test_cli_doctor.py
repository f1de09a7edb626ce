"""`rlobj doctor` as a program, where packages are installed, missing or broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packages import package


def path(folder: Path) -> str:
    """PYTHONPATH with a folder before all others."""
    return os.pathsep.join([str(folder), *sys.path])


def answer(*words: str, code: int = 0, **environment: str) -> str:
    """What the program says."""
    done = subprocess.run(
        [sys.executable, "-m", "rlobj_cli", "doctor", *words],
        env={**os.environ, "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.deepspeed
def test_every_engine_that_the_tests_use_can_be_imported_here() -> None:
    report = json.loads(answer("--json"))
    for name in ("torch", "transformers", "accelerate", "deepspeed", "peft", "math-verify"):
        assert report["versions"][name] == metadata.version(name)
    assert report["devices"]["cpu_cores"] >= 1
    assert len(report["devices"]["gpus"]) == torch.cuda.device_count()
    assert {"torch", "transformers", "deepspeed", "peft", "gguf", "trl"} <= report["imports"].keys()
    assert not any(report["imports"].values())


def test_the_exit_code_is_1_if_torch_crashes_at_import(tmp_path: Path) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    package(tmp_path, "torch", "2.13.0", crash)
    report = answer(code=1, PYTHONPATH=path(tmp_path))
    assert "with code -11" in " ".join(report.split())
