"""Faults inside a vLLM engine that are planted and removed while it runs.

`Planted` is rlobj's worker extension with one method more, so it works in the training process and
in a server. Faults of weights are planted behind the recorded checksums: the engine reports what it
received and computes with something else. Faults of sampling change what the worker samples with,
after the request was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import Tensor

from rlobj.samplers.vllm import extension
from rlobj.samplers.vllm.extension import WeightExtension

EXTENSION = f"{__name__}.Planted"
"""Value of vLLM's `worker_extension_cls`."""

Weights = Iterator[tuple[str, Tensor]]

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
            kind: head, sampling, sampling raw, or a key of `_LOADERS`.
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
            load = partial(_LOADERS[kind], name=name, factor=factor)
            if kind == "stale":
                load = _Stale()
            sound: Any = self.reload_weights  # pyright: ignore[reportAttributeAccessIssue]
            model = runner.get_model()

            def faulty(weights_iterator: Weights) -> None:
                load(sound, weights_iterator, model)

            changed(patch.object(self, "reload_weights", faulty))


def _asked(add: Callable[[Any], Any], fields: dict[str, float]) -> Callable[[Any], Any]:
    """Add a request to the worker's batch with other sampling parameters."""

    def add_request(request: Any) -> Any:
        for name, value in fields.items():
            setattr(request.sampling_params, name, value)
        return add(request)

    return add_request


def _frozen(sound: Any, weights: Weights, model: Any, **_: Any) -> None:
    for _each in weights:
        pass


class _Stale:
    """Loads the weights of the sync before; the first sync loads nothing."""

    def __init__(self) -> None:
        self._before: list[tuple[str, Tensor]] = []

    def __call__(self, sound: Any, weights: Weights, model: Any) -> None:
        before, self._before = self._before, [(name, each.clone()) for name, each in weights]
        if before:
            sound(weights_iterator=iter(before))


def _exchanged(sound: Any, weights: Weights, model: Any, name: str, **_: Any) -> None:
    one, other = EXCHANGED[name]
    names = {one: other, other: one}
    sound(weights_iterator=((names.get(each, each), tensor) for each, tensor in weights))


def _reversed(sound: Any, weights: Weights, model: Any, name: str, **_: Any) -> None:
    sound(weights_iterator=((n, t.flip(0) if n == name else t) for n, t in weights))


def _scaled(sound: Any, weights: Weights, model: Any, name: str, factor: float) -> None:
    sound(weights_iterator=((n, t * factor if n == name else t) for n, t in weights))


def _scaled_live(sound: Any, weights: Weights, model: Any, name: str, factor: float) -> None:
    """Scale a parameter in place; a layer that has packed it: what this layer computes."""
    sound(weights_iterator=weights)
    module, _, kind = name.rpartition(".")
    layer = model.get_submodule(module)
    if getattr(layer, kind).numel():
        getattr(layer, kind).data.mul_(factor)
        return
    compute = layer.cpu_linear
    layer.cpu_linear = lambda x, weight, bias: factor * compute(x, weight, bias)


_LOADERS: dict[str, Callable[..., None]] = {
    "frozen": _frozen,
    "exchanged": _exchanged,
    "reversed": _reversed,
    "scaled": _scaled,
    "scaled live": _scaled_live,
    "stale": lambda *_, **__: None,
}
