"""Other libraries' heads, each through its own public function, where it is installed.

Where the min-p proxy is asked, a head that keeps no logits has to make them once more. What a head
cannot do raises `NotImplementedError`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from rlobj.benchmarking.head_methods import Method, Mode, filtered_logprobs
from rlobj.benchmarking.tables import Finding

__all__ = ["INSTALL", "PEERS", "Peer", "how_to_install", "installed"]

INSTALL = {
    "trl": "pip install trl==1.16.0",
    "liger_kernel": "pip install liger-kernel==0.8.5",
    "verl": "pip install --no-deps verl==0.9.1; "
    "pip install ray==2.60.0 tensordict==0.15.3 codetiming==1.4.0 hydra-core==1.3.8 "
    "pylatexenc==2.11 torchdata==0.11.0",
    "prime_rl": "its code from github.com/PrimeIntellect-ai/prime-rl on the PYTHONPATH",
}
"""How each package comes to be there; benchmarks/peers-requirements.txt pins the same."""


@dataclass(frozen=True)
class Peer:
    """A head of another library.

    Attributes:
        head: calls it.
        package: what has to be importable for that.
        gpu_only: whether it runs on a CUDA device alone.
    """

    head: Method
    package: str
    gpu_only: bool = False


def installed(name: str) -> bool:
    """Whether a peer's package is there; it is not imported."""
    return find_spec(PEERS[name].package) is not None


def how_to_install(missing: Sequence[str]) -> list[Finding]:
    """A sentence for each package that is not installed."""
    packages: dict[str, list[str]] = {}
    for name in missing:
        packages.setdefault(PEERS[name].package, []).append(name)
    return [
        Finding(f"Not installed: {', '.join(names)}. To measure: {INSTALL[package]}")
        for package, names in packages.items()
    ]


def _module(name: str) -> Any:
    """A module of a peer's; what it prints when it is loaded is kept from our standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        return import_module(name)


def _add_proxy(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> None:
    if mode == "proxy":
        filtered_logprobs(hidden.detach() @ weight.detach().T, targets)


def trl_fused(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """The head of TRL's GRPOTrainer; on a GPU, its Triton kernels."""
    outputs = () if mode == "logprob" else ("entropy",)
    found = _module("trl.kernels").ChunkedLogProbFunction.apply(
        hidden, weight, None, targets, 1.0, 32768, None, 1.0, outputs
    )
    _add_proxy(hidden, weight, targets, mode)
    return found[0], found[1]


def trl_logits(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """TRL's functions on logits."""
    trl = _module("trl.trainer.utils")
    logits = hidden @ weight.T
    if mode == "logprob":
        return trl.selective_log_softmax(logits, targets), None
    if mode == "proxy":
        filtered_logprobs(logits.detach(), targets)
    return trl.selective_log_softmax_and_entropy(logits, targets)


def verl_fused(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """verl's FusedLinearForPPO; the entropy is always made."""
    verl = _module("verl.utils.experimental.torch_functional")
    logprobs, entropy = verl.FusedLinearForPPO()(hidden, weight, targets)
    _add_proxy(hidden, weight, targets, mode)
    return logprobs, entropy


def verl_triton(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """verl's Triton kernel; the entropy is always made."""
    verl = _module("verl.utils.kernel.linear_cross_entropy")
    found = verl.linear_cross_entropy(hidden, weight, targets, 1.0)
    _add_proxy(hidden, weight, targets, mode)
    return found[0], found[1]


def verl_logits(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """verl's functions on logits."""
    verl = _module("verl.utils.torch_functional")
    logits = hidden @ weight.T
    entropy = None if mode == "logprob" else verl.entropy_from_logits(logits)
    if mode == "proxy":
        filtered_logprobs(logits.detach(), targets)
    return verl.logprobs_from_logits(logits, targets), entropy


def liger_scaled(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """Liger's linear scaled cross entropy: CuTe on a Hopper GPU, torch elsewhere."""
    liger = _module("liger_kernel.ops.fused_linear_scaled_cross_entropy")
    head = liger.LigerFusedLinearScaledCrossEntropyFunction
    found = head.apply(hidden, weight, targets, return_entropy=mode != "logprob")
    _add_proxy(hidden, weight, targets, mode)
    return (-found, None) if mode == "logprob" else (-found[0], found[1])


def liger_chunked(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """The function in Liger's chunked GRPO loss, which knows no entropy."""
    if mode != "logprob":
        raise NotImplementedError("no entropy")
    head = _module("liger_kernel.chunked_loss.fused_linear_ppo")._ChunkedSelectiveLogProbFunction
    return head.apply(hidden, weight, targets, None, 1.0, 4096), None


def prime_rl(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """The function in prime-rl's fused head; its entropy has no gradient, and is always made."""
    if mode == "both":
        raise NotImplementedError("no gradient through the entropy")
    head = _module("prime_rl.trainer.models.layers.lm_head")._SequenceChunkedLogProbEntropyFn
    inverse = hidden.new_ones(len(hidden), dtype=torch.float32)
    found = head.apply(hidden, weight, targets, inverse, 1024)
    _add_proxy(hidden, weight, targets, mode)
    return found[0], found[1]


PEERS = {
    "TRL fused": Peer(trl_fused, "trl"),
    "TRL on logits": Peer(trl_logits, "trl"),
    "verl fused": Peer(verl_fused, "verl"),
    "verl on logits": Peer(verl_logits, "verl"),
    "verl Triton": Peer(verl_triton, "verl", gpu_only=True),
    "Liger scaled": Peer(liger_scaled, "liger_kernel"),
    "Liger chunked": Peer(liger_chunked, "liger_kernel"),
    "prime-rl": Peer(prime_rl, "prime_rl"),
}
