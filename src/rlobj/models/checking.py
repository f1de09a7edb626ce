"""Check that a run can use its model: from config.json and the tokenizer, without the weights."""

from typing import Any

from rlobj.base.errors import ConfigError, reported
from rlobj.base.paths import path_of
from rlobj.base.targets import importable
from rlobj.base.weights import config_dict
from rlobj.conversations.calls import CallReader
from rlobj.conversations.rendering import Rendering
from rlobj.models.embedded import embedded_policy
from rlobj.models.gguf_files import pretrained
from rlobj.models.loading import load_tokenizer
from rlobj.models.location import is_gguf, on_hub
from rlobj.models.policy import chat_of, prompt_limit
from rlobj.settings.profiles import OWN_PROBLEMS_TASK
from rlobj.settings.run_config import ModelConfig, RunConfig
from rlobj.settings.scores import single_scores

_TOOL = {"type": "function", "function": {"name": "tool", "description": "", "parameters": {}}}
"""A tool for a chat template that is only tried."""


def check_model(config: RunConfig, *, tokenizers: bool = True) -> None:
    """Check what would end a run after its model was loaded.

    Args:
        config: the run.
        tokenizers: try the chat template; else config.json is enough.

    Raises:
        ConfigError: a model is neither on this machine nor on the hub, or its config.json cannot
            be read; the context leaves no room for a prompt; or the chat template cannot be used,
            or not with tools.
    """
    model, data, environment = config.model, config.data, config.environment
    for key, score in single_scores(config.scores).items():
        with reported(ConfigError, f"scores.{key}.model", ConfigError):
            on_hub(None if score.model == "policy" else score.model)
    name = model.name
    if "model" in config.objects:
        return
    fetched, folder = on_hub(name), name is not None and path_of(name).is_dir()
    described = None
    try:
        described = read_config(model, local=not fetched)
    except UnreadableModel:
        if (fetched or folder) and not model.trust_remote_code:
            raise
    prompt_limit(config, described)
    templated = model.chat_template is True or model.chat_template_kwargs or data.system
    untrusted = model.trust_remote_code and not importable("model.trust_remote_code=true")
    tried = tokenizers and not untrusted and (templated or environment.tools)
    if name is None or not tried or is_gguf(path_of(name)):
        return
    tokenizer = load_tokenizer(model, name)
    chat = chat_of(tokenizer, model, data, name)
    if environment.tools:
        CallReader(Rendering(tokenizer, chat, [_TOOL]), environment.calls)


class UnreadableModel(ConfigError):
    """The config.json of a model cannot be read, or transformers makes no model from it."""


def unreadable(name: str, error: Exception) -> UnreadableModel:
    """The error about the config.json of a model, with the reason of transformers."""
    what = f"transformers cannot read the config.json of {name}: {type(error).__name__}"
    return UnreadableModel(f"{what}: {' '.join(str(error).split())[:200]}")


def read_config(config: ModelConfig, *, local: bool = False) -> Any:
    """Read the config.json of the model that a configuration names.

    Args:
        config: the model's settings.
        local: do not ask the hub.

    Returns:
        The configuration of transformers, or of the embedded policy.

    Raises:
        UnreadableModel: it cannot be read.
        ConfigError: it names code that would be executed.
    """
    from transformers import AutoConfig

    name = str(config.name or embedded_policy(OWN_PROBLEMS_TASK))
    code = config.trust_remote_code and importable("model.trust_remote_code=true")
    try:
        source = {**pretrained(name), "local_files_only": local}
        config_dict(**source)  # which refuses code of strangers
        return AutoConfig.from_pretrained(**source, trust_remote_code=code)
    except ConfigError:
        raise
    except Exception as error:  # a file may hold anything
        raise unreadable(name, error) from error
