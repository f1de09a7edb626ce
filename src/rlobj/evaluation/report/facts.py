"""Settings of an evaluation, and what else is known of it, as lines of text."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar

from rlobj.settings.layers import flattened

Value = TypeVar("Value")


def shared(settings: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """The settings that are the same in all."""
    first, *others = settings or [{}]
    return {k: v for k, v in first.items() if all(k in other and other[k] == v for other in others)}


def flat(settings: Mapping[str, Any], common: Container[str] = ()) -> dict[str, str]:
    """Settings by dotted name, each as one line of text, without the common ones."""
    settings_by_name = flattened(settings).items()
    return {name: _line(value) for name, value in settings_by_name if name not in common}


def _line(value: Any) -> str:
    if isinstance(value, str) and value.strip() == value and value.isprintable() and value:
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def facts(about: Mapping[str, Any]) -> dict[str, str]:
    """Model, versions, hardware and the like, one line of text each."""
    lines: dict[str, str] = {}
    for name, value in about.items():
        if isinstance(value, Mapping):
            lines[name] = ", ".join(f"{key} {text}" for key, text in flat(value).items())
        elif value is not None:
            lines |= flat({name: value})
    return lines
