"""The settings of conversations."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.paths import located_target
from rlobj.base.targets import names_in_file
from rlobj.base.validation import Model
from rlobj.data.verifiers import is_verifiers


class EnvironmentSettings(Model):
    """Who answers the policy, and when a conversation ends. By default nobody does."""

    target: str | None = None
    """package.module:Class or path/to/file.py:Class, an environment; or a built-in one:
    calculator; or verifiers:NAME or verifiers:FILE.toml, one of verifiers"""
    tools: tuple[str, ...] = ()
    """tools that the policy may call: calculator, python, package.module:function or
    path/to/file.py:function"""
    calls: Literal["auto", "template", "hermes", "llama3"] = "auto"
    """how the policy writes calls of tools (auto: `template`, the tokenizer's response_template,
    where it has one; else the format that its chat template shows)"""
    max_turns: int = Field(default=16, ge=1)
    """turns of the policy; the conversation ends after the last one"""
    max_errors: int | None = Field(default=None, ge=0)
    """calls of tools that may fail in one conversation; one more ends it; null = any number"""
    at_limit: float | Literal["graded", "undecided"] = "graded"
    """the response whose conversation reached a limit of turns, tokens or errors: graded as it is,
    undecided (not trained on), or this reward"""
    deadline: float = Field(default=30.0, gt=0, le=86_400)
    """time limit of one call of a tool or an environment that settings name, and of an `async` one
    that is passed, in seconds"""
    max_output: int = Field(default=4096, ge=1)
    """largest number of characters that the policy reads of one call of a tool, or of one message
    of an environment"""
    max_failures: int = Field(default=10, ge=0)
    """calls of an environment's methods among the last 1,000 that may raise an exception or reach
    their deadline, so that their responses are undecided; one more stops the run"""
    workers: int = Field(default=4, ge=1)
    """processes that run tools"""
    memory_mb: int = Field(default=1024, ge=64)
    """limit on the memory of one such process, MB; on that of an environment's process, beside what
    the import takes"""

    def seen_from(self, home: Path) -> Self:
        """The settings with absolute paths of files that were named in a folder."""
        target = self.target
        if target and not is_verifiers(target):
            target = located_target(target, home)
        tools = tuple(located_target(tool, home) for tool in self.tools)
        return self.model_copy(update={"target": target, "tools": tools})

    @property
    def active(self) -> bool:
        """Whether there are conversations."""
        return bool(self.target or self.tools)


def named_tools(tools: Any) -> list[str | Callable[..., Any]]:
    """The tools in what a caller gives: names between commas, or a list of names and functions.

    Example:
        >>> named_tools("calculator, python,")
        ['calculator', 'python']
    """
    listed = tools.split(",") if isinstance(tools, str) else tools
    names = [tool.strip() if isinstance(tool, str) else tool for tool in listed]
    return [name for name in names if not isinstance(name, str) or name]


def require_known(setting: str, name: str, known: Iterable[str]) -> None:
    """Check that a name is one of `known`, or that of a caller's own object.

    Raises:
        ConfigError: it is neither.
    """
    if name not in known and ":" not in name:
        own = "Or name your own: package.module:NAME or path/to/file.py:NAME"
        noun = "class" if setting == "environment.target" else "function"
        advice = names_in_file(name, noun) or f"{nearest(name, known)} {own}"
        raise ConfigError(f"{setting} is {name!r}.{advice}")
