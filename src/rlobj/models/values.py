"""The models of values: token classification models of transformers with one label."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlobj.base.errors import ConfigError
from rlobj.base.weights import config_dict, mapped_tensors
from rlobj.scoring.value_scorer import value_head

_KIND = "ForTokenClassification"


def value_class(source: str) -> Any:
    """The class of transformers that loads a hub id or folder with its head; None = it has none."""
    from transformers import AutoModelForTokenClassification

    classes = config_dict(source).get("architectures") or ()
    has_head = any(str(name).endswith(_KIND) for name in classes)
    return AutoModelForTokenClassification if has_head else None


def value_model(model: Any) -> Any:
    """A model to train as a value, with the trunk of a causal language model.

    Its head is 0, so that V begins at 0, or in the middle of its range: the values of a random head
    would be larger than rewards, and noise in the first advantages. A token classification model
    stays as it is.

    Raises:
        ConfigError: transformers has no token classification model of this architecture.
    """
    from transformers import AutoModelForTokenClassification

    if type(model).__name__.endswith(_KIND):
        return model.requires_grad_(True)
    config = copy.deepcopy(model.config)
    config.num_labels = 1
    try:
        with torch.device("meta"):
            value: Any = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
    except ValueError as error:
        what = f"transformers has no token classification model for {type(model).__name__}"
        raise ConfigError(f"{what}; name a model of another architecture") from error
    value.config.architectures = [type(value).__name__]
    value._weight_conversions = getattr(model, "_weight_conversions", None)
    setattr(value, value.base_model_prefix, model.base_model)
    for parameter in value_head(value).to_empty(device=model.device).parameters():
        nn.init.zeros_(parameter)
    return value.requires_grad_(True)


@torch.no_grad()
def read_trained(folder: Path, model: Any) -> None:
    """Give the trained parameters of a model their tensors in the files of a folder, by name."""
    tensors = mapped_tensors(folder.glob("*.safetensors"))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(tensors[name])
