"""The JSON schema of preset files, and the dotted names of all settings with their meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlobj.config.run_config import RunConfig

_OWN = {
    "base": {"type": "string", "description": "the preset or file that this one changes"},
    "paper": {"type": "string", "description": "name, authors, year and arXiv number"},
    "summary": {"type": "string", "description": "what the objective does, in one line"},
    "sources": {"type": "object", "description": "by source, the place that states each setting"},
}


def preset_schema() -> dict[str, Any]:
    """The JSON schema of a preset file. An editor that knows it completes and checks the keys."""
    schema = RunConfig.model_json_schema()
    settings = {k: v for k, v in schema["properties"].items() if k not in ("preset", "origin")}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rlobj preset"}
    return {**schema, **head, "properties": {**_OWN, **settings}}


def setting_meanings() -> dict[str, str]:
    """What each setting means, by its dotted name."""
    schema = preset_schema()

    def walk(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
        for part in (node, *node.get("anyOf", ())):
            part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
            for name, value in part.get("properties", {}).items():
                yield prefix + name, value.get("description", "")
                yield from walk(value, f"{prefix}{name}.")
            if part is not node:
                yield from walk({"anyOf": part.get("anyOf", ())}, prefix)

    return {name: text for name, text in walk(schema, "") if name.partition(".")[0] not in _OWN}
