"""The strategy fsdp2: torch's fully_shard shards weights, gradients and moments."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.models.hollow import is_hollow
from rlobj.scoring import TokenScores
from rlobj.scoring.policy_scorer import TrunkScorer
from rlobj.training.parallel.strategies import Columns, Parallel, Scorer, shard_of


class FullySharded(Parallel):
    """FSDP2: gathers a decoder layer while it computes, and other weights while the scorer does.

    Gradients are reduced into their shards at every micro-batch. Reducing them only at the last one
    would need memory for whole gradients on every rank.
    """

    shards = True

    def frozen(self, scorer: TrunkScorer) -> Scorer:
        return sharded_scorer(scorer, self.device, self.size)

    def prepare(self, scorer: TrunkScorer, optimizer: torch.optim.AdamW) -> Scorer:
        root = Columns(scorer)
        names = {id(parameter): name for name, parameter in root.named_parameters()}
        shard_layers(root, self.device, self.size)
        shards = dict(root.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [shards[names[id(parameter)]] for parameter in group["params"]]
        self._module, self._optimizer = root, optimizer
        return self._score


def shard_layers(root: Columns, device: torch.device, ranks: int) -> None:
    """Let each rank store its part of a scorer's weights; a layer is gathered while it computes.

    Of hollow parameters, each rank reads only its part.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    parameters: Any = dict(root.named_parameters())
    unread = {name: p.unread for name, p in parameters.items() if is_hollow(p)}
    _replace_parameters(root, lambda p: _like(p, p.to("meta")) if is_hollow(p) else p)
    root._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))
    mesh = init_device_mesh(device.type, (ranks,))
    for layer in _layers(root.scorer.model.get_decoder()):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(root, mesh=mesh, reshard_after_forward=True)
    names = {id(parameter): name for name, parameter in root.named_parameters()}

    def read(parameter: Any) -> nn.Parameter:
        if (whole := unread.get(names[id(parameter)])) is None:
            return parameter
        return _like(parameter, shard_of(parameter, whole, device))

    _replace_parameters(root, read)


def _replace_parameters(root: nn.Module, new: Callable[[Any], nn.Parameter]) -> None:
    """Put `new(parameter)` in the place of each parameter; tied ones stay tied."""
    replaced: dict[int, tuple[Any, nn.Parameter]] = {}
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in replaced:
                    replaced[id(parameter)] = (parameter, new(parameter))
                module._parameters[name] = replaced[id(parameter)][1]


def _like(parameter: nn.Parameter, tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=parameter.requires_grad)


def sharded_scorer(scorer: TrunkScorer, device: torch.device, ranks: int) -> Scorer:
    """A scorer that is never trained, in shards."""
    root = Columns(scorer)
    shard_layers(root, device, ranks)
    return lambda *inputs, **settings: TokenScores(**root(*inputs, **settings))


def _layers(decoder: nn.Module) -> list[nn.Module]:
    """Return the decoder's layers, which are the members of its module lists."""
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    return [layer for layers in lists for layer in layers]
