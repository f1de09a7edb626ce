"""Faults inside a vLLM engine that are planted and removed while it runs.

`Planted` is rlobj's worker extension with one method more, so it works in the training process and
in a server. Faults of weights are planted behind the recorded checksums: the engine reports what it
received and computes with something else. Faults of sampling change what the worker samples with,
after the request was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from torch import Tensor

from rlobj.samplers.vllm import extension
from rlobj.samplers.vllm.extension import WeightExtension

EXTENSION = f"{__name__}.Planted"
"""Value of vLLM's `worker_extension_cls`."""

Weights = dict[str, Tensor]

LINEAR = "model.layers.1.mlp.down_proj.weight"
NORM = "model.norm.weight"
EXCHANGED = {
    "layers": ("model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"),
    "gate and up": ("model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"),
}
SAMPLING = {
    "temperature 0.9": {"temperature": 0.9},
    "top-p 0.95": {"top_p": 0.95},
    "min-p 0.05": {"min_p": 0.05},
}


class Planted(WeightExtension):
    """rlobj's extension of vLLM's worker, with faults.

    Attributes:
        rlobj_faults: undoes the planted fault.
    """

    rlobj_faults: ExitStack | None = None

    def rlobj_plant(
        self, kind: str, name: str = "", factor: float = 1.0, unread: bool = False
    ) -> None:
        """Plant a fault in place of the one before; "" leaves a sound engine.

        Args:
            kind: head, sampling, sampling raw, scaled live, or a kind of `_loaded`.
            name: a tensor, or a key of `EXCHANGED` or `SAMPLING`.
            factor: of a scaled tensor.
            unread: the weights that the engine computes with cannot be read, as quantized ones.
        """
        if self.rlobj_faults is not None:
            self.rlobj_faults.close()
        self.rlobj_faults = ExitStack()
        runner: Any = self.model_runner  # pyright: ignore[reportAttributeAccessIssue]
        changed = self.rlobj_faults.enter_context
        if unread:
            nothing: dict[str, Any] = {"tensors": {}, "fused": {}}
            changed(patch.object(self, "rlobj_live", lambda: nothing, create=True))
        if kind == "head":
            changed(patch.object(extension, "refresh_head", lambda *_: None))
        elif kind.startswith("sampling"):
            batch = runner.input_batch
            changed(patch.object(batch, "add_request", _asked(batch.add_request, SAMPLING[name])))
            if kind == "sampling raw":
                for each in (runner.sampler, runner.sampler.topk_topp_sampler):
                    changed(patch.object(each, "logprobs_mode", "raw_logprobs"))
        elif kind:
            reload: Any = self.reload_weights  # pyright: ignore[reportAttributeAccessIssue]
            before: Weights = {}

            def faulty(weights_iterator: Iterator[tuple[str, Tensor]]) -> None:
                nonlocal before
                now = {each: tensor.clone() for each, tensor in weights_iterator}
                loaded, before = _loaded(kind, name, factor, now, before), now
                if loaded:
                    reload(weights_iterator=iter(loaded.items()))
                if kind == "scaled live":
                    _scale(runner.get_model(), name, factor)

            changed(patch.object(self, "reload_weights", faulty))


def _asked(add: Callable[[Any], Any], fields: dict[str, float]) -> Callable[[Any], Any]:
    """Add a request to the worker's batch with other sampling parameters."""

    def add_request(request: Any) -> Any:
        for name, value in fields.items():
            setattr(request.sampling_params, name, value)
        return add(request)

    return add_request


def _loaded(kind: str, name: str, factor: float, now: Weights, before: Weights) -> Weights:
    """What is loaded in place of the weights of now; {} = nothing."""
    if kind == "frozen":
        return {}
    if kind == "stale":
        return before
    if kind == "exchanged":
        one, other = EXCHANGED[name]
        return now | {one: now[other], other: now[one]}
    if kind == "reversed":
        return now | {name: now[name].flip(0)}
    return now | {name: now[name] * factor} if kind == "scaled" else now


def _scale(model: Any, name: str, factor: float) -> None:
    """Scale a parameter in place; a layer that has packed it: what this layer computes."""
    module, _, kind = name.rpartition(".")
    layer = model.get_submodule(module)
    if getattr(layer, kind).numel():
        getattr(layer, kind).data.mul_(factor)
        return
    compute = layer.cpu_linear
    layer.cpu_linear = lambda x, weight, bias: factor * compute(x, weight, bias)
