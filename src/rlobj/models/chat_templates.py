"""Whether and how prompts go through the chat template of a tokenizer."""

from __future__ import annotations

import os
import resource
import signal
import warnings
from collections.abc import Callable
from typing import Any

from rlobj.base.errors import ConfigError, Setting
from rlobj.base.memory import peak_memory
from rlobj.data import Chat, DataConfig
from rlobj.data.templates import MEMORY, SECONDS
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
    if wanted and not _ends(lambda: chat.applied(tokenizer, "1 + 1 = ?")):
        raise ConfigError(
            f"the chat template of '{source}' takes more than {SECONDS} seconds or {MEMORY >> 30}"
            " GiB for one prompt. Use another model, or ",
            Setting("model.chat_template", False),
        )
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


def _ends(call: Callable[[], Any]) -> bool:
    """Whether a call ends in bounded time and memory, tried in a copy of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about other threads, which the copy does not have
        child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        limit = peak_memory() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        call()
    except BaseException as error:  # any other is raised again where the call is needed
        os._exit(isinstance(error.__cause__ or error, MemoryError))
    os._exit(0)
