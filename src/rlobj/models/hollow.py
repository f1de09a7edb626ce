"""Models whose weights are read when they are needed, one tensor at a time.

A hollow parameter has the shape, the dtype and the device of a weight, and no memory: its elements
are one number. It knows where its values are in a file of safetensors. `filled` reads them, or a
strategy that shards the weights does. So a process never holds the whole model.

    model = hollow_model(config, source, torch.float32, device, AutoModelForCausalLM)
    with reading(model):                 # a module has its weights while it computes
        scorer = PolicyScorer(model)
    parallel.prepare(scorer, optimizer)  # reads this rank's shards
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.base.errors import warn
from rlobj.base.weights import open_tensors, warn_unused
from rlobj.settings.run_config import ModelConfig

_FLOATS = ("F64", "F32", "F16", "BF16")
_OLD_BUFFERS = (r"rotary_emb\.inv_freq", r"(^|\.)position_ids$")
"""Buffers that files of older versions of transformers have, and that are computed now."""


def hollow_model(
    config: ModelConfig, source: str, dtype: torch.dtype, device: Any, kind: Any
) -> Any:
    """A model of transformers with hollow parameters, and with buffers as transformers loads them.

    Args:
        config: the model's settings.
        source: hub id or folder.
        dtype: of its parameters.
        device: of its parameters and buffers.
        kind: its class, such as AutoModelForCausalLM.

    Returns:
        None if its files do not hold the tensors of its parameters, by name. This is logged.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig, GenerationConfig

    tensors: dict[str, Any] = {}
    try:
        if not config.trust_remote_code:
            settings = AutoConfig.from_pretrained(source, trust_remote_code=False)
            tensors = _tensors(source)
    except (OSError, ValueError):
        return None  # transformers tells what is wrong when it loads the whole model
    if not tensors:
        why: str | None = "it may have code of its own, or has no files of safetensors"
    else:
        # No random number is used up: new adapters are those of a model that is loaded whole.
        with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False):
            model: Any = kind.from_config(settings, dtype=torch.float32)
        model.tie_weights()
        why = _difference(model, tensors)
    if why is not None:
        warn("'%s' is loaded whole by each process: %s", source, why)
        return None
    known = "|".join([*(model._keys_to_ignore_on_load_unexpected or ()), *_OLD_BUFFERS])
    unused = tensors.keys() - model.state_dict().keys()
    warn_unused(source, [name for name in unused if not re.search(known, name)])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    nothing = torch.zeros((), dtype=dtype, device=device)

    def hollow(parameter: nn.Parameter) -> nn.Parameter:
        made: Any = nn.Parameter(nothing.expand(parameter.shape))
        made.unread = functools.partial(_get, tensors, names[id(parameter)])
        return made

    replace_parameters(model, hollow)
    for name, buffer in model.named_buffers():
        if name in model.state_dict():
            buffer.copy_(_get(tensors, name))
    with contextlib.suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(source)
    return model.to(nothing.device).eval()


def _tensors(source: str) -> dict[str, Any]:
    """The open file of each tensor of a model, by the tensor's name; {} = there are others."""
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
    from transformers.utils.hub import cached_file, get_checkpoint_shard_files

    def path(name: str) -> Any:
        return cached_file(source, name, _raise_exceptions_for_missing_entries=False)

    files: Any = [path(SAFE_WEIGHTS_NAME)]
    if path("adapter_config.json"):  # transformers adds the adapters
        files = []
    elif files == [None]:
        index = path(SAFE_WEIGHTS_INDEX_NAME)
        files = get_checkpoint_shard_files(source, index)[0] if index else []
    return open_tensors(map(Path, files))


def _get(tensors: dict[str, Any], name: str) -> Tensor:
    """A tensor in a file. Its memory is the file's, which is read where it is used."""
    return tensors[name].get_tensor(name)


def _difference(model: Any, tensors: dict[str, Any]) -> str | None:
    """Why a model cannot take the tensors of files as they are; None if it can."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    stored, changes = {*model.state_dict()}, get_model_conversion_mapping(model)
    wanted = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in wanted:
        if name not in stored:
            continue
        if any(change.rename_source_key(name)[0] != name for change in changes):
            return f"transformers converts {name}"
        if name not in tensors:
            return f"its files have no {name}"
        part = tensors[name].get_slice(name)
        if part.get_dtype() not in _FLOATS or part.get_shape() != list(tensor.shape):
            return f"{name} is {part.get_dtype()} {part.get_shape()}"
    for pair in model.all_tied_weights_keys.items():
        if tensors.keys() >= {*pair} and not torch.equal(*(_get(tensors, name) for name in pair)):
            return f"{' and '.join(pair)} differ"
    return None


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
