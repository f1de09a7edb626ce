"""Jinja templates in a process that can be killed."""

from __future__ import annotations

import functools
from typing import Any

MOST = 1 << 24
"""Characters of the longest text."""
_SHOWN = 300


class Templates:
    """Compiles templates and fills them in; one that fails says why."""

    def __init__(self) -> None:
        from jinja2 import StrictUndefined, TemplateRuntimeError
        from jinja2.exceptions import SecurityError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self._environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
        self._kinds = (SecurityError, TemplateRuntimeError, RecursionError, OverflowError)
        self._compiled = functools.lru_cache(self._environment.from_string)

    def answer(self, template: str, columns: dict[str, Any] | None) -> tuple[list[Any], str]:
        """Fill in a template, or compile it.

        Args:
            template: its text.
            columns: the values of its names; None = compile it.

        Returns:
            True and the text; of a template that is compiled, its names and those that it calls. Or
            False, what is wrong, and whether that is so with any columns. And an empty reason.
        """
        try:
            compiled = self._compiled(template)
            if columns is None:
                return [True, self._names(template)], ""
            text = compiled.render(columns)
        except MemoryError:
            raise
        except Exception as error:  # a template may fail in many ways
            text = str(error).rstrip(".") or type(error).__name__
            return [False, text[:_SHOWN], type(error) in self._kinds], ""
        if len(text) > MOST:
            wrong = f"its text has {len(text):,} characters; at most {MOST:,} are read"
            return [False, wrong, False], ""
        return [True, text], ""

    def _names(self, template: str) -> list[list[str]]:
        """The names that a template reads, and those among them that it calls."""
        from jinja2 import meta, nodes

        tree = self._environment.parse(template)
        if next(meta.find_referenced_templates(tree), "") != "":
            raise ValueError("it includes another template, which is not possible")
        names = meta.find_undeclared_variables(tree)
        calls = tree.find_all(nodes.Call)
        called = {call.node.name for call in calls if isinstance(call.node, nodes.Name)}
        return [sorted(names), sorted(called & names)]
