"""Check that a run can use its model: from config.json and the tokenizer, without the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.paths import path_of
from rlobj.base.showing import shown
from rlobj.base.targets import importable, is_object_text
from rlobj.conversations.calls import CallReader
from rlobj.conversations.rendering import Rendering
from rlobj.data import encode_prompt, format_prompt, load_problems
from rlobj.models.chat_templates import chat_of
from rlobj.models.embedded import build_policy
from rlobj.models.gguf_files import pretrained
from rlobj.models.loading import load_tokenizer
from rlobj.models.location import is_gguf, on_hub
from rlobj.models.policy import prompt_limit
from rlobj.settings.run_config import ModelConfig, RunConfig

_TOOL = {"type": "function", "function": {"name": "tool", "description": "", "parameters": {}}}
"""A tool for a chat template that is only tried."""
_LONGEST = 8
"""The prompts with most characters, one of which is taken for that with most tokens."""


def check_model(config: RunConfig) -> None:
    """Check what would end a run after its model was loaded.

    Raises:
        ConfigError: a model is neither on this machine nor on the hub; the context leaves no room
            for a prompt; or the chat template cannot be used, or not with tools.
    """
    name, scores = config.model.name, config.scores.values()
    if is_object_text(name):
        return
    fetched = on_hub(name)
    for score in scores:
        on_hub(None if score.model == "policy" else score.model)
    described = (
        build_policy(0).config if name is None else read_config(config.model, local=not fetched)
    )
    if described is not None:
        prompt_limit(config, described)
    model, data, environment = config.model, config.data, config.environment
    templated = model.chat_template is True or model.chat_template_kwargs or data.system
    if name is None or not (templated or environment.tools) or not _has_tokenizer(model, name):
        return
    tokenizer = load_tokenizer(model, name)
    chat = chat_of(tokenizer, model, data, name)
    if environment.tools:
        CallReader(Rendering(tokenizer, chat, [_TOOL]), environment.calls)


def longest_prompt(config: RunConfig) -> int | None:
    """The tokens of the longest training prompt that is not left out; None if that is not known."""
    name, data = config.model.name, config.data
    problems = load_problems(data, "train", answers=config.needs_answers)
    texts = sorted((format_prompt(data.template, problem) for problem in problems), key=len)
    if name is None:  # a token is a character
        return len(texts[-1]) + 1
    if not _has_tokenizer(config.model, name):
        return None
    tokenizer = load_tokenizer(config.model, name)
    chat = chat_of(tokenizer, config.model, data, name)
    return max(len(encode_prompt(tokenizer, text, chat)) for text in texts[-_LONGEST:])


def _has_tokenizer(config: ModelConfig, name: str) -> bool:
    """Whether its tokenizer can be read here: its code may be run, and it is no GGUF file."""
    path = path_of(name)
    if is_gguf(path) or (path.is_dir() and not any(path.glob("tokenizer*"))):
        return False
    return not config.trust_remote_code or importable("model.trust_remote_code=true")


def read_config(config: ModelConfig, *, local: bool = False) -> Any:
    """Read the config.json of the model that a configuration names.

    Args:
        config: the model's settings.
        local: do not ask the hub.

    Returns:
        The configuration of transformers; None if it cannot be read.

    Raises:
        ConfigError: it has a number that no model has.
    """
    from transformers import AutoConfig, PretrainedConfig

    name = str(config.name)
    code = config.trust_remote_code and importable("model.trust_remote_code=true")
    try:
        source = {**pretrained(name), "local_files_only": local}
        file, _ = PretrainedConfig.get_config_dict(**source)
        _check_numbers(file.get("text_config") or file, name)
        settings = AutoConfig.from_pretrained(**source, trust_remote_code=code)
        _check_numbers(vars(settings.get_text_config()), name)
        return settings
    except ConfigError:
        raise
    except Exception:  # a file may hold anything, and transformers has errors of many kinds
        return None


_LARGEST = {
    "num_hidden_layers": 1000,
    "hidden_size": 1_000_000,
    "intermediate_size": 10_000_000,
    "num_attention_heads": 10_000,
    "num_key_value_heads": 10_000,
    "head_dim": 100_000,
    "vocab_size": 100_000_000,
    "max_position_embeddings": 1_000_000_000,
}
"""The numbers of a config.json that an estimate reads, and a bound far above those of any model."""


def _check_numbers(config: Mapping[str, Any], name: str) -> None:
    """Refuse numbers that are not possible, before a model of that size is made.

    Lists, which some models have for their layers, are left to transformers.

    Raises:
        ConfigError: names the number and the model.
    """
    for key, largest in _LARGEST.items():
        number = config.get(key)
        if number is None or isinstance(number, list):
            continue
        if type(number) is not int or not 1 <= number <= largest:
            raise ConfigError(
                f"the config.json of {name} has {key} = {shown(number)}; expected a whole number "
                f"from 1 to {largest:,}"
            )
