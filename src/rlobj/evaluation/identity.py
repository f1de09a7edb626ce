"""Whether an evaluation may go on in a folder: only under the settings it was begun with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.evaluation.provenance import text_digest

__all__ = ["differences", "fingerprint", "may_continue"]

TOLD = {"source", "notes", "protocol", "reward.deadline"}
"""Settings of a benchmark that are recorded and change no number: what was asked has a hash."""
GROWS = "samples"
"""Of a benchmark; may become more, never fewer."""


def may_continue(path: object, there: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse other settings than those in the folder.

    Both are {"model": {...}, "engine": {...}, "benchmarks": {name: {...}}}. Benchmarks of one side
    alone are no difference: an evaluation may take on more of them. An empty folder takes anything.

    Raises:
        ConfigError: with each difference.
    """
    found = differences(there, now) if there else []
    if found:
        lines = "\n".join(f"  {name}: {was!r} there, {asked!r} now" for name, was, asked in found)
        raise ConfigError(
            f"{path} holds an evaluation with other settings:\n{lines}\nGive those again to "
            "continue it, or another folder with --out DIR"
        )


def differences(
    there: Mapping[str, Any], now: Mapping[str, Any]
) -> list[tuple[str, object, object]]:
    """(setting, value there, value now) of what differs and changes numbers."""
    before, after = _essence(there), _essence(now)
    found = []
    for part, was in before.items():
        asked = after.get(part)
        if asked is None:  # a benchmark of one side alone
            continue
        names = dict.fromkeys([*was, *asked])
        found += [
            (f"{part}.{name}", was.get(name), asked.get(name))
            for name in names
            if was.get(name) != asked.get(name)
        ]
    return [each for each in found if not _grown(*each)]


def fingerprint(settings: Mapping[str, Any]) -> str:
    """The same 16 digits for settings that give the same numbers."""
    return text_digest(json.dumps(_essence(settings), sort_keys=True, default=str))


def _essence(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """model, engine and each benchmark -> what changes numbers, nested settings with dots."""
    model = _flat(settings.get("model", {}))
    model.pop("name", None)
    if model.get("weights") is not None:  # the same weights elsewhere are the same model
        model.pop("source", None)
    found = {"model": model, "engine": _flat(settings.get("engine", {}))}
    for name, own in settings.get("benchmarks", {}).items():
        found[name] = {key: value for key, value in _flat(own).items() if key not in TOLD}
    return found


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _grown(name: str, was: object, asked: object) -> bool:
    return (
        name.endswith(f".{GROWS}")
        and isinstance(was, int)
        and isinstance(asked, int)
        and asked > was
    )
