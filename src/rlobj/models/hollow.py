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
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.base.errors import warn
from rlobj.base.weights import mapped_tensors, warn_unused
from rlobj.settings.run_config import ModelConfig

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
    model: Any = None
    if not config.trust_remote_code:
        try:
            with contextlib.suppress(ValueError, RuntimeError):  # its own code, another shape
                model = _mapped(source, kind)
        except OSError:
            return None  # transformers tells what is wrong when it loads the whole model
    if model is None:
        why = "code of its own, no files of safetensors, or tensors that transformers converts"
        warn("'%s' is loaded whole by each process: it has %s", source, why)
        return None
    nothing = torch.zeros((), dtype=dtype, device=device)
    for parameter in model.parameters():
        parameter.unread = parameter.detach()
        parameter.data = nothing.expand(parameter.shape)
    return model.to(nothing.device).eval()


def _mapped(source: str, kind: Any) -> Any:
    """A model whose parameters are the tensors in its files; None if transformers converts them."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, GenerationConfig
    from transformers.conversion_mapping import get_model_conversion_mapping

    settings = AutoConfig.from_pretrained(source, trust_remote_code=False)
    # No random number is used up: new adapters are those of a model that is loaded whole.
    with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False):
        model: Any = kind.from_config(settings, dtype=torch.float32)
    tensors, changes = _tensors(source), get_model_conversion_mapping(model)
    for name, buffer in model.named_buffers():
        if name in tensors:
            tensors[name] = tensors[name].to(buffer.dtype, copy=True)
    missing, unused = map(set, model.load_state_dict(tensors, strict=False, assign=True))
    model.tie_weights(missing_keys=missing, recompute_mapping=False)
    small = any(parameter.dtype.itemsize < 2 for parameter in model.parameters())
    if missing or small or any(x.rename_source_key(n)[0] != n for x in changes for n in tensors):
        return None
    known = "|".join([*(model._keys_to_ignore_on_load_unexpected or ()), *_OLD_BUFFERS])
    warn_unused(source, [name for name in unused if not re.search(known, name)])
    with contextlib.suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(source)
    return model


def _tensors(source: str) -> dict[str, Tensor]:
    """The tensors in the files of a model, by name; {} = there are others."""
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
    return mapped_tensors(map(Path, files))


def is_hollow(parameter: Any) -> bool:
    """Whether the values of a parameter are still in a file."""
    return hasattr(parameter, "unread")


def filled(parameters: Iterable[Any]) -> Iterator[Any]:
    """The parameters with their values: one is read when the iteration comes to it."""
    for parameter in parameters:
        if is_hollow(parameter):
            parameter.data = values(parameter.unread, parameter.device, parameter.dtype)
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
                parameter.data = values(parameter.unread, parameter.device, parameter.dtype)

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
