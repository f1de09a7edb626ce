"""The policy: a causal language model with its tokenizer."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from rlobj.base.errors import ConfigError, Setting, warn
from rlobj.data import Chat, DataConfig, Problem, encode_prompt, format_prompt
from rlobj.models import adapters
from rlobj.models.adapters import Full, Weights, without_adapters
from rlobj.models.loading import load_model, load_tokenizer, loading, no_dropout
from rlobj.settings.run_config import ModelConfig, RunConfig


@dataclass(frozen=True)
class Policy:
    """A model, and how problems become its prompts.

    Attributes:
        model: the causal language model, with float32 weights and no dropout; with LoRA, peft's.
        tokenizer: its tokenizer.
        source: the folder or hub id that it was loaded from.
        chat: how prompts go through the chat template; None = they do not.
        template: the text around a problem.
        test_template: the text around a held-out problem.
    """

    model: Any
    tokenizer: Any
    source: str
    chat: Chat | None
    template: str
    test_template: str

    def encode(self, problem: Problem) -> list[int]:
        """The token ids of a problem's prompt."""
        return encode_prompt(self.tokenizer, format_prompt(self.template, problem), self.chat)

    def encode_test(self, problem: Problem) -> list[int]:
        """`encode` for a held-out problem."""
        return encode_prompt(self.tokenizer, format_prompt(self.test_template, problem), self.chat)

    def weights(self, full: Full, *, as_stored: bool = True, merged: bool = True) -> Weights:
        """(name, whole tensor) of each weight, one at a time, with LoRA merged in.

        Args:
            full: returns one parameter whole, if it is sharded.
            as_stored: use the names of a Hugging Face checkpoint and not those of the modules.
            merged: False = not merged: A and alpha/r·B of each layer come after the other weights.
        """
        inner = without_adapters(self.model)
        for name, tensor in adapters.merged_weights(self.model, full, merged=merged):
            # Some modules fuse several tensors of the checkpoint.
            if as_stored and getattr(inner, "_weight_conversions", None):
                from transformers.core_model_loading import revert_weight_conversion

                yield from revert_weight_conversion(inner, {name: tensor}).items()
            else:
                yield name, tensor
        if not merged:
            yield from adapters.adapter_weights(self.model, full, scaled=True)

    def save_settings(self, folder: Path) -> None:
        """Write a Hugging Face model folder without its weights."""
        inner = without_adapters(self.model)
        inner.config.save_pretrained(folder)
        if getattr(inner, "generation_config", None) is not None:
            inner.generation_config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_policy(
    config: ModelConfig,
    data: DataConfig,
    source: str,
    adapter: Path | None = None,
    *,
    device: Any = "cpu",
    hollow: bool = False,
) -> Policy:
    """Load the model and its tokenizer from a hub id or a folder.

    Args:
        config: the model's settings.
        data: how problems become prompts.
        source: hub id or folder.
        adapter: folder of trained LoRA weights; None = new ones, if LoRA is set.
        device: as in `load_model`.
        hollow: as in `load_model`.

    Raises:
        ConfigError: there is no causal language model with a tokenizer.
    """
    tokenizer = load_tokenizer(config, source)
    chat = chat_of(tokenizer, config, data, source)
    with loading(source):
        model: Any = load_model(config, source, device=device, hollow=hollow)
    if config.lora is not None:
        model = adapters.with_adapters(model, config.lora, adapter)
    return Policy(model, tokenizer, source, chat, data.template, data.template_for_tests)


def policy_of(model: nn.Module, tokenizer: Any, config: ModelConfig, data: DataConfig) -> Policy:
    """A policy of a transformers model that is already in memory. Its dropout is switched off.

    Args:
        model: a causal language model with float32 weights.
        tokenizer: its tokenizer.
        config: the model's settings; `lora` adds adapters when the run begins.
        data: how problems become prompts.

    Raises:
        ConfigError: weights that are not float32, or a chat template that is required and missing.
    """
    kinds = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()} - {"float32"})
    if kinds:
        what = f"the model has {', '.join(kinds)} weights; expected float32"
        raise ConfigError(f"{what}: load it with dtype=torch.float32, and use model.dtype=bfloat16")
    no_dropout(model)
    source = str(getattr(model.config, "name_or_path", ""))
    chat = chat_of(tokenizer, config, data, source)
    return Policy(model, tokenizer, source, chat, data.template, data.template_for_tests)


def chat_of(tokenizer: Any, config: ModelConfig, data: DataConfig, source: str) -> Chat | None:
    """How prompts go through the tokenizer's chat template; None if they do not.

    Raises:
        ConfigError: the settings need a chat template and the tokenizer has none, or the template
            does not use a setting.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    wanted = bool(template) if config.chat_template == "auto" else config.chat_template
    if wanted and not template:
        what = f"model.chat_template is true, but the tokenizer of '{source}' has none. Use "
        raise ConfigError(what, Setting("model.chat_template", False))
    chat = Chat(data.system, config.chat_template_kwargs)
    unused = [
        f"model.chat_template_kwargs.{name}" for name in chat.arguments if name not in template
    ]
    if chat.system is not None and wanted:
        try:
            used = chat.system.strip() in chat.rendered(
                tokenizer, [{"role": "user", "content": ""}]
            )
        except ConfigError:  # some templates refuse the role
            used = False
        unused += ["data.system"] * (not used)
    elif not wanted and chat != Chat():
        what = "data.system and model.chat_template_kwargs need a chat template"
        raise ConfigError(f"{what}, and the prompts of '{source}' go through none")
    if unused:
        names = ", ".join(unused)
        raise ConfigError(f"the chat template of '{source}' does not use {names}. Leave it out")
    return chat if wanted else None


def prompt_limit(config: RunConfig, described: Any, *, configured: bool = True) -> int | None:
    """Tokens that a prompt may have: as configured, and at most what the model's context leaves.

    Args:
        config: the run.
        described: the model's configuration of transformers; None = it is not known.
        configured: heed `data.max_prompt_tokens`.

    Raises:
        ConfigError: it leaves none.
    """
    most = config.data.max_prompt_tokens if configured else None
    context = getattr(described and described.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return most
    longest = config.sampling.max_tokens + config.bootstraps  # whose value reads a token more
    if longest >= context:
        what = f"sampling.max_tokens={config.sampling.max_tokens} leaves no room for a prompt"
        raise ConfigError(f"{what}: the model's context is {context} tokens")
    return min(most or context, context - longest)


def short_enough(
    problems: Sequence[Problem], encode: Callable[[Problem], Sized], limit: int | None, kind: str
) -> list[Problem]:
    """The problems whose prompts fit; the number of the others is logged.

    Raises:
        ConfigError: none fits.
    """
    if limit is None or not problems:
        return list(problems)
    kept = [problem for problem in problems if len(encode(problem)) <= limit]
    if not kept:
        what = f"none of the {len(problems)} {kind} problems has a prompt of at most {limit} tokens"
        raise ConfigError(f"{what}. Lower sampling.max_tokens")
    if left_out := len(problems) - len(kept):
        warn("left out %d %s problems: prompts over %d tokens", left_out, kind, limit)
    return kept
