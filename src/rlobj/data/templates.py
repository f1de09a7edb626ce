"""Fill in a stranger's Jinja templates, within limits of time and memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

from rlobj.base.errors import ConfigError
from rlobj.data.problems import Problem
from rlobj.workers.judge import Judge

SECONDS, MEMORY = 10, 2 << 30
"""What a template may take for one prompt; it is a program of its author."""


class Templates:
    """Templates of prompts, in a process of their own that is killed if one takes too much.

    The process starts with the first template, and ends with the context. It has a sandbox: a
    template reads the columns of a problem, and no attribute that leads out of them.
    """

    def __init__(self) -> None:
        self._worker = Judge("rlobj.data.template_worker:Templates", SECONDS, MEMORY, 10_000)
        self._names: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.kill()

    def check(self, setting: str, template: str) -> list[str]:
        """Check what can be known of a template without a problem.

        Args:
            setting: that has the template, for the message.
            template: its text.

        Returns:
            The names of the columns that it reads.

        Raises:
            ConfigError: it is no template, calls a function that there is not, or takes too much.
        """
        right, answer, *_ = self._ask(setting, template, None)
        if not right:
            raise ConfigError(f"{setting} is no template: {answer}")
        names, called = answer
        if called:
            raise ConfigError(
                f"{setting} calls {', '.join(called)}, and there is no such function. A template "
                "has the columns of the problem and the functions of Jinja, such as range"
            )
        _, answer, *certain = self._ask(setting, template, dict.fromkeys(names, "1"))
        if any(certain):  # another error may be due to these columns
            raise ConfigError(f"{setting} cannot be filled in: {answer}")
        self._names[template] = names
        return names

    def fill(self, setting: str, template: str, problem: Problem, feedback: str = "") -> str:
        """The text of a template for a problem.

        Args:
            setting: that has the template, for the message.
            template: its text.
            problem: has the columns.
            feedback: of the reward.

        Raises:
            ConfigError: it reads a column that the problem lacks, fails, or takes too much.
        """
        if template not in self._names:
            self.check(setting, template)
        answer = {"answer": problem.answer} if problem.answer else {}
        columns = {**problem.extra, "prompt": problem.prompt, **answer, "feedback": feedback}
        read = {name: columns[name] for name in self._names[template] if name in columns}
        right, text, *_ = self._ask(setting, template, read)
        if not right:
            *first, last = columns
            raise ConfigError(
                f"{setting} cannot be filled in for problem {problem.id}: {text}. Its columns are "
                f"{', '.join(first)} and {last}"
            )
        return text

    def _ask(self, setting: str, template: str, columns: Mapping[str, Any] | None) -> Any:
        plain = json.loads(json.dumps(columns, default=str))  # such as a date as its text
        reply, reason = self._worker.reply(template, plain)
        if reply is None:
            how = f" ({reason})" if reason not in ("timeout", "memory") else ""
            raise ConfigError(
                f"{setting} takes more than {SECONDS} seconds or {MEMORY >> 30} GiB for one prompt"
                f"{how}. Use a template without long loops and texts"
            )
        return reply
