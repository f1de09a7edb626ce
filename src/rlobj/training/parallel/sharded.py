"""The strategy fsdp2: torch's fully_shard shards weights, gradients and moments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlobj.scoring import PolicyScorer, TokenScores
from rlobj.training.parallel.base import MOMENTS, Columns, Moments, Parallel, Scorer, clip_and_step

__all__ = ["FullySharded"]


class FullySharded(Parallel):
    """FSDP2: gathers a decoder layer while it computes, and other weights while the scorer does.

    Gradients are reduced into their shards at every micro-batch. Reducing them only at the last one
    would need memory for whole gradients on every rank.
    """

    _module: Any

    def prepare(self, scorer: PolicyScorer, optimizer: torch.optim.AdamW) -> tuple[Scorer, Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        root = Columns(scorer).to(self.device)
        names = {id(parameter): name for name, parameter in root.named_parameters()}
        mesh = init_device_mesh(self.device.type, (self.size,))
        for layer in _layers(scorer.model.get_decoder()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        fully_shard(root, mesh=mesh, reshard_after_forward=True)
        shards = dict(root.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [shards[names[id(parameter)]] for parameter in group["params"]]
        self._module, self._optimizer = root, optimizer
        return self._score, optimizer

    def _score(self, *inputs: Tensor, **settings: Any) -> TokenScores:
        return TokenScores(**self._module(*inputs, **settings))

    def backward(self, loss: Tensor, last: bool) -> None:
        (loss * self.size).backward()

    def step(self, apply: bool) -> float:
        return clip_and_step(self._optimizer, self.max_grad_norm, apply)

    def full(self, parameter: nn.Parameter) -> Tensor:
        return _whole(parameter.detach())

    def moments(self, parameter: nn.Parameter) -> Moments:
        state = self._optimizer.state.get(parameter, {})
        return {name: _whole(state[name]) for name in (*MOMENTS, "step") if name in state}

    def set_moments(self, parameter: nn.Parameter, moments: Moments) -> None:
        if moments:
            state = {name: _shard_as(parameter, moments[name]) for name in MOMENTS}
            self._optimizer.state[parameter] = {**state, "step": moments["step"].cpu().clone()}


def _layers(decoder: nn.Module) -> list[nn.Module]:
    """Return the decoder's layers, which are the members of its module lists."""
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    return [layer for each in lists for layer in each]


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _shard_as(parameter: Any, whole: Tensor) -> Tensor:
    """Shard a whole tensor, which every rank has, in the same way as the parameter."""
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    whole = whole.to(parameter.device, parameter.dtype)
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)
