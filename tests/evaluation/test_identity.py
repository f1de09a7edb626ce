"""Evaluations are continued only under the settings they were begun with."""

from __future__ import annotations

import json
import re

import pytest

from rlobj.base.errors import ConfigError
from rlobj.evaluation.problem_sets import differences, fingerprint, model_identity, require_same

STORED = {
    "model": {"name": "m", "weights": "abc"},
    "engine": {"name": "vllm"},
    "benchmarks": {"my.jsonl": {"samples": 4, "temperature": 0.7, "template": "{prompt}\n"}},
    "sessions": [1],
}


def with_setting(path, value):
    changed = json.loads(json.dumps(STORED))
    *folders, last = re.split(r"/", path) if "/" in path else path.split(".")
    inner = changed
    for name in folders:
        inner = inner[name]
    inner[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("model.weights", "abd", "model.weights"),
        ("engine.name", "transformers", "engine.name"),
        ("benchmarks/my.jsonl/temperature", 0.6, "my.jsonl.temperature"),
        ("benchmarks/my.jsonl/template", "{prompt} ", "my.jsonl.template"),
        ("benchmarks/my.jsonl/samples", 2, "my.jsonl.samples"),
    ],
)
def test_error_lists_the_settings_that_differ(path, value, name):
    with pytest.raises(ConfigError, match=re.escape(name) + ": .* there, .* now") as error:
        require_same("evals/x", STORED, with_setting(path, value))
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    "now",
    [
        STORED,
        with_setting("sessions", []),
        with_setting("benchmarks/my.jsonl/samples", 32),
        with_setting("benchmarks/math500", {"samples": 1}),
        with_setting("benchmarks", {"math500": {"samples": 1}}),
    ],
)
def test_more_samples_and_other_benchmarks_may_continue(now):
    assert differences(STORED, now) == []
    require_same("evals/x", STORED, now)
    require_same("evals/x", {}, now)


def test_identity_of_a_model_depends_on_every_byte(tmp_path):
    file = tmp_path / "model.safetensors"
    content = bytearray(range(256)) * 4096
    file.write_bytes(content)
    first = model_identity(str(tmp_path))
    assert first == model_identity(str(tmp_path))
    for place in (0, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        assert model_identity(str(tmp_path)) != first
    (tmp_path / "config.json").write_text("{}")
    with_settings = model_identity(str(tmp_path))
    (tmp_path / "config.json").write_text('{"rope_theta": 5}')
    assert model_identity(str(tmp_path)) != with_settings
    nowhere = {"weights": None, "settings": None, "revision": None}
    assert model_identity("nobody/no-such-model") == nowhere


def test_path_and_name_of_the_model_are_not_compared():
    moved = with_setting("benchmarks/my.jsonl/source", "/elsewhere/my.jsonl")
    moved["model"] |= {"name": "./m", "source": "./m"}
    assert differences(STORED, moved) == []
    assert fingerprint(STORED) == fingerprint(moved)
    assert fingerprint(STORED) != fingerprint(with_setting("benchmarks/my.jsonl/temperature", 0.6))
    hub = with_setting("model.weights", None)
    assert differences(hub, {**hub, "model": {**hub["model"], "source": "a/b"}})
