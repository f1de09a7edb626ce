"""What was measured on: the machine, the versions, and our own sources."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

__all__ = ["SOURCES", "machine", "versions"]

PACKAGE = Path(__file__).parents[1]
SOURCES = "rlobj's sources"
"""The name of what tells one state of our code from another: a version or commit does not."""

PACKAGES = ("numpy", "transformers", "triton", "trl", "verl", "liger-kernel", "prime-rl")


def machine() -> dict[str, str]:
    """Processor, cores, memory, system, and GPU where there is one."""
    gibibytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    facts = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{gibibytes:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name(0)
    return facts


def versions() -> dict[str, str]:
    """rlobj with its commit where it is a checkout, its sources, torch, and what is beside us."""
    known = {name: _version(name) for name in ("rlobj", *PACKAGES)}
    found = {"rlobj": (known.pop("rlobj") or "not installed") + _commit()}
    found |= {SOURCES: _sources(PACKAGE), "torch": torch.__version__}
    return found | {name: number for name, number in known.items() if number}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Its name, from the kernel."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.machine()


def _sources(package: Path) -> str:
    """Eight digits that change with any module of a package."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:8]


def _commit() -> str:
    """` (commit 1a2b3c4, changed)`; empty where the package is not part of a git checkout."""
    options = ("--always", "--dirty=, changed", "--exclude=*")
    try:
        if not (PACKAGE.parents[1] / ".git").exists():
            return ""
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), "describe", *options], capture_output=True, text=True
        )
    except OSError:  # no git
        return ""
    return f" (commit {done.stdout.strip()})" if done.returncode == 0 else ""
