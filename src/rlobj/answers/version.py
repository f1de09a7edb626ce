"""The version of the verifier: what a verdict depends on, besides the answers."""

import functools
import hashlib
from importlib import metadata
from pathlib import Path

DEADLINE, MEMORY_GIB = 5.0, 4.0
"""The limits of a worker if none are given: processor seconds for one answer, and GiB."""
PACKAGES = ("mpmath", "sympy", "latex2sympy2_extended", "math-verify")
"""Packages that compare what this one cannot decide itself."""


@functools.cache
def verifier_version(
    deadline: float = DEADLINE,
    memory_gib: float = MEMORY_GIB,
    folder: Path = Path(__file__).parents[1],
) -> str:
    """Return ten hexadecimal digits of a hash of all that a verdict depends on.

    It depends on the source files of the verifier and of its worker processes, the installed
    versions of `PACKAGES`, and the limits of a worker. The same version gives the same verdicts,
    except for answers that need about as much time or memory as the limits. Another version may
    give others, even if only a comment changed.

    Args:
        deadline: processor time for one answer, in seconds.
        memory_gib: limit on the address space of a worker, in GiB.
        folder: with the source files.
    """
    digest = hashlib.sha256(f"{float(deadline)} {float(memory_gib)}\n".encode())
    sources = ("answers/*.py", "answers/*.toml", "workers/*.py")
    for file in sorted(file for pattern in sources for file in folder.glob(pattern)):
        digest.update(f"{file.name}\n{file.read_text(encoding='utf-8')}".encode())
    for package in PACKAGES:
        digest.update(f"{package}=={metadata.version(package)}\n".encode())
    return digest.hexdigest()[:10]
