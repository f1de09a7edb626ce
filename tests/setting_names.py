"""The dotted names of all settings, as the JSON schema has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlobj.settings.run_config import RunConfig

OF_RUNS = ("preset", "origin", "objects")
"""What a run notes of itself."""


def setting_meanings() -> dict[str, str]:
    """What each setting means, by its dotted name."""
    schema = RunConfig.model_json_schema()

    def walk(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
        for part in (node, *node.get("anyOf", ())):
            part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
            for name, value in part.get("properties", {}).items():
                yield prefix + name, value.get("description", "")
                yield from walk(value, f"{prefix}{name}.")
            if part is not node:
                yield from walk({"anyOf": part.get("anyOf", ())}, prefix)

    return {name: text for name, text in walk(schema, "") if name not in OF_RUNS}
