"""The strategy fsdp2: torch's fully_shard shards weights, gradients and moments."""

from __future__ import annotations

import torch
from torch import nn

from rlobj.scoring import PolicyScorer
from rlobj.training.parallel.base import Columns, Parallel, Scorer


class FullySharded(Parallel):
    """FSDP2: gathers a decoder layer while it computes, and other weights while the scorer does.

    Gradients are reduced into their shards at every micro-batch. Reducing them only at the last one
    would need memory for whole gradients on every rank.
    """

    def prepare(self, scorer: PolicyScorer, optimizer: torch.optim.AdamW) -> Scorer:
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
        return self._score


def _layers(decoder: nn.Module) -> list[nn.Module]:
    """Return the decoder's layers, which are the members of its module lists."""
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    return [layer for each in lists for layer in each]
