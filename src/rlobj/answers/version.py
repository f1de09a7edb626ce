"""The version of the verifier: what a verdict depends on, besides the answers."""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from pathlib import Path

PACKAGES = ("mpmath", "sympy", "latex2sympy2_extended", "math-verify")
"""Packages that compare what this one cannot decide itself."""


@functools.cache
def verifier_version(folder: Path = Path(__file__).parent) -> str:
    """Return ten hexadecimal digits of a hash of the verifier's source files.

    The installed versions of `PACKAGES` are part of it. Verifiers of the same version give the same
    verdicts, except for timeouts. Another version may give others, even if only a comment changed.

    Args:
        folder: with the source files.
    """
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.py"), *folder.glob("*.toml")]):
        digest.update(f"{file.name}\n{file.read_text(encoding='utf-8')}".encode())
    for package in PACKAGES:
        try:
            digest.update(f"{package}=={metadata.version(package)}\n".encode())
        except metadata.PackageNotFoundError:
            continue
    return digest.hexdigest()[:10]
