"""Load a model or its tokenizer from a folder or from the hub, for training and for scores."""

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from rlobj.base.errors import ConfigError
from rlobj.base.weights import config_dict, load_complete
from rlobj.models.hollow import filled, hollow_model
from rlobj.settings.run_config import ModelConfig


def load_model(
    config: ModelConfig,
    source: str,
    *,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    hollow: bool = False,
    kind: Any = None,
) -> nn.Module:
    """The model without its tokenizer and without dropout: on-policy ratios are 1.

    Args:
        config: the model's settings.
        source: hub id or folder.
        device: of the model.
        dtype: of its weights; buffers keep their own.
        hollow: the weights stay in their files, if they can be read from there; see `hollow`.
        kind: the class of transformers that loads it; None = AutoModelForCausalLM.

    Raises:
        ConfigError: its files lack a tensor, or have one of another shape, or its config.json
            names code of the hub.
    """
    from transformers import AutoModelForCausalLM

    kind = kind or AutoModelForCausalLM
    config_dict(source)  # which refuses code of strangers
    model: Any = None
    if hollow or torch.device(device).type != "cpu":
        model = hollow_model(config, source, dtype, device, kind)
    if model is None:
        trusted = config.trust_remote_code
        with _no_bars() if Path(source).is_dir() else contextlib.nullcontext():
            model = load_complete(kind, source, dtype=torch.float32, trust_remote_code=trusted)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(device, dtype)
        model.to(device)
    if not hollow:
        for _ in filled(model.parameters()):
            pass
    no_dropout(model)
    return model


def load_tokenizer(config: ModelConfig, source: str) -> Any:
    """The tokenizer of a hub id or folder.

    Raises:
        ConfigError: no tokenizer there.
    """
    from transformers import AutoTokenizer

    with loading(source):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=config.trust_remote_code)


def arithmetic(config: ModelConfig) -> torch.dtype | None:
    """The arithmetic of forward passes in training and sampling; None = the weights' float32."""
    half = config.dtype == "bfloat16" or (config.dtype == "auto" and torch.cuda.is_available())
    return torch.bfloat16 if half else None


def no_dropout(model: nn.Module) -> None:
    """Set all dropout rates to 0: those of modules, and those that modules pass to functions."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, rate in vars(module).items():
            if "drop" in name and isinstance(rate, float):
                setattr(module, name, 0.0)


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Hide transformers' progress bars: local files load in no time."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextlib.contextmanager
def loading(source: str) -> Iterator[None]:
    """Raise a library's error about a model that it cannot load as a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # of many libraries, about any of the files
        why: Any = error
        if isinstance(error, pickle.UnpicklingError):
            why = "its weights are a pickle that is damaged or would run code"
        expected = "Expected a folder of save_pretrained, a complete GGUF file or a hub id"
        raise ConfigError(f"cannot load the model '{source}': {why}\n{expected}") from error
