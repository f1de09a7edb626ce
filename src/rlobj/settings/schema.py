"""The JSON schema of preset files."""

from typing import Any

from rlobj.base.primitives import Primitive
from rlobj.settings.run_config import RunConfig

_OWN = {
    "base": {"type": "string", "description": "the preset or file that this one changes"},
    "paper": {"type": "string", "description": "name, authors, year and arXiv number"},
    "summary": {"type": "string", "description": "what the objective does, in one line"},
    "sources": {"type": "object", "description": "by source, the place that states each setting"},
}
_NOT_OF_PRESETS = ("preset", "origin", "objects")


def preset_schema() -> dict[str, Any]:
    """The JSON schema of a preset file. An editor that knows it completes and checks the keys.

    A primitive is a kind, a mapping with the fields of its kind, or without a kind the fields that
    change those of the base.
    """
    schema = RunConfig.model_json_schema()
    defs = schema["$defs"]
    for family in Primitive.__subclasses__():
        for kind, member in family.registry.items() if family.__name__ in defs else ():
            spec = member.model_json_schema(ref_template="#/$defs/{model}")
            for name, definition in spec.pop("$defs", {}).items():
                defs.setdefault(name, definition)
            spec["properties"] = {"kind": {"const": kind}, **spec.get("properties", {})}
            defs[member.__name__] = {**spec, "required": ["kind", *spec.get("required", [])]}
            defs[family.__name__]["anyOf"].insert(-1, {"$ref": f"#/$defs/{member.__name__}"})
    settings = {k: v for k, v in schema["properties"].items() if k not in _NOT_OF_PRESETS}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rlobj preset"}
    return {**schema, **head, "properties": {**_OWN, **settings}}
