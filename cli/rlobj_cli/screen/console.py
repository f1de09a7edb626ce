"""What all commands show in the same way: waiting, facts, YAML, explanations and numbers."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from rlobj.base.errors import Message
from rlobj_cli.screen.errors import typed

if TYPE_CHECKING:
    from rlobj.objectives.explanation import Explanation
from rlobj.reporting.terminal import say, shown_lines


def calm_libraries(console: Console) -> None:
    """Hide progress bars and notices of other libraries, and show rlobj's own warnings."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if "transformers" in sys.modules:  # otherwise it reads the variables
        from transformers.utils import logging as notices

        notices.disable_progress_bar()
        notices.set_verbosity_error()
    warnings.filterwarnings("ignore", module=r"(torch|transformers|accelerate|datasets)\b.*")
    handler = RichHandler(
        console=console, level=logging.WARNING, show_time=False, show_path=False, markup=False
    )
    handler.addFilter(_as_typed)
    logger = logging.getLogger("rlobj")
    logger.handlers, logger.propagate = [handler], False


def _as_typed(record: logging.LogRecord) -> bool:
    """Write a warning as the program's messages are."""
    if isinstance(record.msg, Message):
        record.msg = typed(record.msg)
    return True


def show_page(console: Console, path: Path) -> None:
    """Print where a page was written."""
    size = path.stat().st_size / 1e6
    console.print(Text(f"{path}  {size:.1f} MB, opens in a browser"), soft_wrap=True)


def show_yaml(console: Console, text: str) -> None:
    """Print YAML, in colour on a terminal; otherwise as plain text that can be read back."""
    text = shown_lines(text.expandtabs())
    if not console.is_terminal:
        console.print(Text(text.rstrip("\n")), soft_wrap=True)
        return
    from rich.syntax import Syntax

    console.print(
        Syntax(text, "yaml", theme="ansi_dark", background_color="default", word_wrap=True)
    )


def show_explanation(console: Console, explanation: Explanation) -> None:
    """Print the formula, the rules, the columns that are read, and settings without effect."""
    text = Text(shown_lines(str(explanation)))
    text.highlight_regex(r"(?m)^(\w+(?=  |:)|loss.* = .*)", "bold cyan")
    text.highlight_regex(r"(?m)^\w+ reads .*", "dim")
    text.highlight_regex(r"(?m)^no effect:", "bold yellow")
    say(console, text)


def plain_value(value: Any) -> str:
    """Format a setting on one line, as in YAML."""
    from rlobj.base.yaml import dump_yaml

    text = dump_yaml(value, flow=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...").strip()
