"""The dotted names of all settings, with what the texts below their fields say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from rlobj.base.primitives import Primitive
from rlobj.base.validation import Model
from rlobj.settings.run_config import RunConfig

OF_RUNS = ("preset", "origin", "objects")
"""What a run notes of itself."""


def setting_meanings() -> dict[str, str]:
    """What each setting means, by its dotted name; of a primitive, what it means for each kind."""
    return {name: text for name, text in _walk(RunConfig, "") if name not in OF_RUNS}


def _walk(model: type[Model], prefix: str) -> Iterator[tuple[str, str]]:
    fields = zip(model.keys(), model.model_fields.values(), strict=True)
    for key, field in fields:
        yield prefix + key, model.meanings().get(key, "")
        for part in _models(field.annotation):
            if not issubclass(part, Primitive):
                yield from _walk(part, f"{prefix}{key}.")
                continue
            texts: dict[str, list[str]] = {"kind": [], "target": []}
            for kind, member in part.registry.items():
                for name in member.keys():  # noqa: SIM118
                    texts.setdefault(name, []).append(f"{kind}: {member.meanings()[name]}")
            yield from ((f"{prefix}{key}.{name}", "; ".join(text)) for name, text in texts.items())


def _models(annotation: Any) -> list[type[Model]]:
    """The models that a setting may be, and not those in a list or a mapping."""
    several = get_origin(annotation) in (tuple, dict)
    parts = [annotation, *(() if several else get_args(annotation))]
    return [part for part in parts if isinstance(part, type) and issubclass(part, Model)]
