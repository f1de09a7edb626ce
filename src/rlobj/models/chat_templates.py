"""Whether and how prompts go through the chat template of a tokenizer."""

from typing import Any

from rlobj.base.errors import ConfigError, Setting
from rlobj.data import Chat, DataConfig
from rlobj.settings.run_config import ModelConfig


def chat_of(tokenizer: Any, config: ModelConfig, data: DataConfig, source: str) -> Chat | None:
    """How prompts go through the tokenizer's chat template; None if they do not.

    Raises:
        ConfigError: the settings need a chat template and the tokenizer has none, or the template
            does not use a setting.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    wanted = bool(template) if config.chat_template == "auto" else config.chat_template
    if wanted and not template:
        raise ConfigError(
            f"model.chat_template is true, but the tokenizer of '{source}' has none. Use ",
            Setting("model.chat_template", False),
            ", or a chat model",
        )
    chat = Chat(data.system, config.chat_template_kwargs)
    unused = [
        f"model.chat_template_kwargs.{name}" for name in chat.arguments if name not in template
    ]
    if chat.system is not None and wanted:
        try:
            used = chat.system.strip() in chat.applied(tokenizer, "")
        except ConfigError:  # some templates refuse the role
            used = False
        unused += ["data.system"] * (not used)
    elif not wanted and chat != Chat():
        raise ConfigError(
            "data.system and model.chat_template_kwargs need a chat template, and the prompts of "
            f"'{source}' go through none. Leave them out; data.template is the text around a prompt"
        )
    if unused:
        names = ", ".join(unused)
        raise ConfigError(f"the chat template of '{source}' does not use {names}. Leave it out")
    return chat if wanted else None
