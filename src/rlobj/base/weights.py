"""Transformers models whose files have all tensors; others would get random numbers in silence."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, warn_once
from rlobj.base.text import visible

_SHOWN = 5
"""Names of tensors in a message."""


def config_dict(pretrained_model_name_or_path: str, **settings: Any) -> dict[str, Any]:
    """The config.json of a model that computes with code of transformers.

    Args:
        pretrained_model_name_or_path: hub id or folder.
        **settings: of `PretrainedConfig.get_config_dict`, whose errors are raised, too.

    Raises:
        ConfigError: it names a kernel of the hub, which would be executed.
    """
    from transformers import PretrainedConfig

    source = pretrained_model_name_or_path
    whole = PretrainedConfig.get_config_dict(source, **settings)[0]
    parts: list[Any] = [whole]
    for part in parts:
        for key, value in part.items() if isinstance(part, dict) else ():
            if key.endswith("_implementation") and "/" in str(value):
                what = f"the config.json of '{source}' has {key} = {value!r:.80}"
                raise ConfigError(f"{what}, code that would be downloaded and executed")
            parts.append(value)
    return whole


def load_complete(kind: Any, source: str, **settings: Any) -> Any:
    """A model of transformers, all of whose weights are in its files.

    Tied weights may be there once, and buffers that are not saved are computed. A tensor that the
    model does not use is warned about.

    Args:
        kind: a class with `from_pretrained`, such as AutoModelForCausalLM.
        source: hub id or folder.
        **settings: of `from_pretrained`.

    Raises:
        ConfigError: the files lack a tensor, have one of another shape, or have adapters beside
            the model. Other errors are those of `from_pretrained`.
    """
    model, loading = kind.from_pretrained(
        source, output_loading_info=True, ignore_mismatched_sizes=True, **settings
    )
    if getattr(model, "_hf_peft_config_loaded", False):  # then `loading` is about them alone
        raise ConfigError(f"'{source}' has adapters beside its model: merge them first, with peft")
    problems: list[str] = []
    if missing := sorted(loading["missing_keys"]):
        problems.append(f"its files lack {_named(missing)}")
    if others := sorted(loading["mismatched_keys"]):
        shapes = [f"{name} {[*file]} instead of {[*size]}" for name, file, size in others]
        problems.append(f"its files have other shapes: {_named(shapes)}")
    if problems:
        what = f"'{source}' has not the weights that its config.json describes"
        raise ConfigError(f"{what}, and would have random ones: {'; '.join(problems)}")
    warn_unused(source, loading["unexpected_keys"])
    return model


def mapped_tensors(files: Iterable[Path]) -> dict[str, Any]:
    """The tensors in files of safetensors, by name. They are read where they are used."""
    from safetensors.torch import load_file

    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def warn_unused(source: str, names: Iterable[str]) -> None:
    """Name in one line the tensors of a model's files that the model does not use."""
    if names := sorted(names):
        warn_once(f"'{source}' has tensors that its model does not use: {_named(names)}")


def _named(names: list[str]) -> str:
    """The first names, and how many there are more."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(visible, names[:_SHOWN])) + more
