"""The JSON schema of preset files, and what each setting means."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from setting_names import setting_meanings

from rlobj.base.primitives import Primitive
from rlobj.settings.presets import flattened, preset_folder, read_yaml
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.schema import preset_schema

PRESETS = sorted(preset_folder().glob("*.yaml"))


@functools.cache
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = preset_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def errors(content: dict[str, Any]) -> list[str]:
    return [error.json_path for error in validator().iter_errors(content)]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_preset_is_valid_under_the_schema(path: Path) -> None:
    assert errors(read_yaml(path)) == []


def test_items_of_a_list_of_sources_are_names_or_mappings() -> None:
    assert errors({"data": {"source": ["a.jsonl", {"source": "b", "weight": 2}]}}) == []


def test_teachers_of_subjects_are_names_or_mappings() -> None:
    models = {"math": "org/teacher", "code": {"model": "org/coder"}}
    assert errors({"scores": {"teacher": {"by": "topic", "models": models}}}) == []
    wrong = {"by": "topic", "models": {"math": 3}}
    assert errors({"scores": {"teacher": wrong}}) == ["$.scores.teacher"]


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({"bse": "dapo"}, "$"),
        ({"training": {"stepz": 3}}, "$.training"),
        ({"training": {"steps": "many"}}, "$.training.steps"),
        ({"data": {"source": ["a", {"source": "b", "wieght": 2}]}}, "$.data.source"),
        ({"objective": {"surrogate": "clipp"}}, "$.objective.surrogate"),
        ({"objective": {"surrogate": {"kind": "clip", "lo": 0.2}}}, "$.objective.surrogate"),
        ({"objective": {"surrogate": {"kind": "clip", "dual": [1]}}}, "$.objective.surrogate"),
        ({"objective": {"penalties": [{"kind": "kl"}, {"kind": 3}]}}, "$.objective.penalties[1]"),
    ],
)
def test_a_mistake_is_invalid_under_the_schema(content: dict[str, Any], path: str) -> None:
    assert errors(content) == [path]


def test_each_kind_of_a_primitive_has_its_fields_with_their_meaning() -> None:
    schema = preset_schema()["$defs"]
    for family in ("Advantage", "Controller", "Divisor", "Mismatch", "Penalty", "Reward"):
        for kind, member in next(
            each for each in Primitive.__subclasses__() if each.__name__ == family
        ).registry.items():
            assert {"$ref": f"#/$defs/{member.__name__}"} in schema[family]["anyOf"]
            fields = schema[member.__name__]["properties"]
            assert fields["kind"] == {"const": kind}
            assert fields.keys() == {"kind", *member.keys()}
            assert all("description" in fields[key] for key in member.meanings())


def test_every_setting_has_its_meaning() -> None:
    known = setting_meanings()
    assert known["training.steps"] == "number of rollouts"
    assert known["objective.surrogate.dual"] == "clip: c, an absolute cap for A < 0; null = none"
    unsaid = {name for name, text in known.items() if not text}
    assert all(name.endswith((".kind", ".target")) for name in unsaid)

    assert {*flattened(settings_of(RunConfig()))} - {"preset", "origin", "objects"} <= known.keys()
