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
        what = f"model.chat_template is true, but the tokenizer of '{source}' has none. Use "
        raise ConfigError(what, Setting("model.chat_template", False))
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
        what = "data.system and model.chat_template_kwargs need a chat template"
        raise ConfigError(f"{what}, and the prompts of '{source}' go through none")
    if unused:
        names = ", ".join(unused)
        raise ConfigError(f"the chat template of '{source}' does not use {names}. Leave it out")
    return chat if wanted else None
