"""The policy: a causal language model with its tokenizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlobj.config import ModelConfig
from rlobj.data import DataConfig, Problem, encode_prompt, format_prompt
from rlobj.errors import ConfigError

__all__ = ["Policy", "arithmetic", "load_model", "load_policy"]


@dataclass(frozen=True)
class Policy:
    """A model and how problems are put to it.

    Attributes:
        model: the causal language model, float32 weights, dropout off.
        tokenizer: its tokenizer.
        source: where it was loaded from; a reference policy is loaded from there again.
        chat: whether prompts go through the chat template.
        template: the text around a problem.
    """

    model: Any
    tokenizer: Any
    source: str
    chat: bool
    template: str

    def encode(self, problem: Problem) -> list[int]:
        """The token ids that the model is asked to continue."""
        return encode_prompt(self.tokenizer, format_prompt(self.template, problem), self.chat)

    def recompute_activations(self) -> None:
        """Trade time for memory in training; newer transformers call it so."""
        newer = getattr(self.model, "activation_checkpointing_enable", None)
        (newer or self.model.gradient_checkpointing_enable)()

    def save(self, folder: Path) -> None:
        """A Hugging Face model folder, with the tokenizer."""
        with _no_bars():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)


def load_policy(config: ModelConfig, data: DataConfig, source: str) -> Policy:
    """Load the model and its tokenizer from a hub id or a folder.

    Raises:
        ConfigError: nothing there, or no causal language model with a tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, trust_remote_code=config.trust_remote_code
        )
        model = load_model(config, source)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot load the model '{source}': {error}\nExpected a folder written by "
            "save_pretrained, with its tokenizer, or the id of a model on the hub."
        ) from error
    has_template = bool(getattr(tokenizer, "chat_template", None))
    chat = has_template if config.chat_template == "auto" else config.chat_template
    if chat and not has_template:
        raise ConfigError(f"model.chat_template is on, but the tokenizer of '{source}' has none")
    return Policy(model, tokenizer, source, chat, data.template)


def arithmetic(config: ModelConfig) -> torch.dtype | None:
    """What forward passes compute in, training and sampling alike; None = the weights' float32."""
    half = config.dtype == "bfloat16" or (config.dtype == "auto" and torch.cuda.is_available())
    return torch.bfloat16 if half else None


def load_model(config: ModelConfig, source: str) -> nn.Module:
    """The model alone, in float32, with every dropout off (a ratio must be 1 on-policy)."""
    from transformers import AutoModelForCausalLM

    with _no_bars() if Path(source).is_dir() else contextlib.nullcontext():
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, trust_remote_code=config.trust_remote_code
        )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Files on this machine load and save too fast for transformers' progress bars."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
