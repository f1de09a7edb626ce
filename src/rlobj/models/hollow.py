"""Models whose weights are read when they are needed, one tensor at a time.

A hollow parameter has the shape, the dtype and the device of a weight, and no memory: its elements
are one number. It knows where its values are in a file. `filled` reads them, or a strategy that
shards the weights does. So a process never holds the whole model. transformers finds the tensors,
as for a model that it offloads to the disk.

    model = hollow_model(config, source, torch.float32, device)
    with reading(model):                 # a module has its weights while it computes
        scorer = PolicyScorer(model)
    parallel.prepare(scorer, optimizer)  # reads this rank's shards
"""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.base.errors import ConfigError
from rlobj.base.weights import load_complete
from rlobj.settings.run_config import ModelConfig


def hollow_model(config: ModelConfig, source: str, dtype: torch.dtype, device: Any) -> Any:
    """A causal language model with hollow parameters, and with buffers as transformers loads them.

    Tensors that transformers converts, such as those of mixtures of experts, are written to
    temporary files.

    Args:
        config: the model's settings.
        source: hub id or folder.
        dtype: of its parameters.
        device: of its parameters and buffers.

    Raises:
        ConfigError: as `load_complete`, or a tensor has another shape than the model's.
    """
    from accelerate.hooks import remove_hook_from_submodules
    from transformers import AutoModelForCausalLM

    logging.getLogger("accelerate.big_modeling").addFilter(_said)
    with contextlib.ExitStack() as stack:
        converted = tempfile.mkdtemp(prefix="rlobj-weights-")
        stack.callback(shutil.rmtree, converted, ignore_errors=True)
        model = load_complete(
            AutoModelForCausalLM,
            source,
            dtype=torch.float32,
            trust_remote_code=config.trust_remote_code,
            device_map={"": "disk"},
            offload_folder=converted,
        )
        hooks = [module._hf_hook for module in model.modules() if hasattr(module, "_hf_hook")]
        weights = next(hook.weights_map.dataset for hook in hooks if hook.weights_map is not None)
        weakref.finalize(weights, stack.pop_all().close)  # when all parameters are read
    for place in weights.index.values():
        if "safetensors_file" in place:  # its tensors are mapped, and the device converts them
            place.pop("dtype", None)
    remove_hook_from_submodules(model)
    for name in ("to", "cuda", "hf_device_map"):  # they would refuse to move the model
        vars(model).pop(name, None)
    parameters = model.named_parameters(remove_duplicate=False)
    names = {id(parameter): name for name, parameter in parameters if name in weights}
    for parameter, name in ((p, names[id(p)]) for p in model.parameters()):
        if (shape := weights[name].shape) != parameter.shape:
            raise ConfigError(f"'{source}' has {name} {[*shape]} instead of {[*parameter.shape]}")
    nothing = torch.zeros((), dtype=dtype, device=device)

    def hollow(parameter: nn.Parameter) -> nn.Parameter:
        made: Any = nn.Parameter(nothing.expand(parameter.shape))
        made.unread = functools.partial(weights.__getitem__, names[id(parameter)])
        return made

    replace_parameters(model, hollow)
    return model.to(nothing.device).eval()


def _said(record: logging.LogRecord) -> bool:
    return "offloaded to the disk" not in record.getMessage()


def replace_parameters(root: nn.Module, new: Callable[[Any], nn.Parameter]) -> None:
    """Put `new(parameter)` in the place of each parameter; tied ones stay tied."""
    replaced: dict[int, tuple[Any, nn.Parameter]] = {}
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in replaced:
                    replaced[id(parameter)] = (parameter, new(parameter))
                module._parameters[name] = replaced[id(parameter)][1]


def is_hollow(parameter: Any) -> bool:
    """Whether the values of a parameter are still in a file."""
    return hasattr(parameter, "unread")


def filled(parameters: Iterable[Any]) -> Iterator[Any]:
    """The parameters with their values: one is read when the iteration comes to it."""
    for parameter in parameters:
        if is_hollow(parameter):
            parameter.data = values(parameter.unread(), parameter.device, parameter.dtype)
            del parameter.unread
        yield parameter


def values(tensor: Tensor, device: Any, dtype: torch.dtype) -> Tensor:
    """A copy of a tensor. The device converts it, not the CPU that read it."""
    return tensor.to(device, copy=True).to(dtype)


@contextlib.contextmanager
def reading(model: nn.Module) -> Iterator[None]:
    """Within this context, a module has the values of its hollow parameters while it computes."""
    handles: list[Any] = []
    for module in model.modules():
        hollow = [(p, p.data) for p in module.parameters(recurse=False) if is_hollow(p)]

        def read(*_: Any, hollow: list[Any] = hollow) -> None:
            for parameter, _ in hollow:
                parameter.data = values(parameter.unread(), parameter.device, parameter.dtype)

        def drop(*_: Any, hollow: list[Any] = hollow) -> None:
            for parameter, nothing in hollow:
                parameter.data = nothing

        if hollow:
            handles += [module.register_forward_pre_hook(read), module.register_forward_hook(drop)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
