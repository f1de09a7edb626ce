"""`rlobj doctor` as a program, where packages are installed, missing or broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

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


def engines(report: str) -> dict[str, dict[str, Any]]:
    return {engine["name"]: engine for engine in json.loads(report)["engines"]}


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.deepspeed
def test_every_engine_that_the_tests_use_can_run_here() -> None:
    text = answer("--json")
    report, by_name = json.loads(text), engines(text)
    for name in ("torch", "transformers", "accelerate", "deepspeed", "peft", "math-verify"):
        assert report["versions"][name] == metadata.version(name)
    assert report["devices"]["cpu_cores"] >= 1
    assert len(report["torch"]["gpus"]) == torch.cuda.device_count()
    cannot = {name for name, engine in by_name.items() if not engine["runs"]}
    trackers = {f"output.trackers {name}" for name in ("wandb", "mlflow", "trackio")}
    assert not cannot - trackers - {"loss_mode=rlobj in verl"}  # which has its own environment


def test_the_exit_code_is_1_if_torch_crashes_at_import(tmp_path: Path) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    package(tmp_path, "torch", "2.13.0", crash)
    core = engines(answer("--json", code=1, PYTHONPATH=path(tmp_path)))["--sampler transformers"]
    assert not core["runs"]
    assert "with code -11" in core["why"]
    assert "--force-reinstall --no-deps torch==2.13.0" in core["fix"]
