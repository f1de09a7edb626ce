"""What is asked, under which settings, before anything is sampled."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import ConfigError
from rlobj.data.prompts import MATH_TEMPLATE, PLAIN_TEMPLATE
from rlobj.data.tasks import TASKS
from rlobj.evaluation.engines import find_model
from rlobj.evaluation.identity import differences, fingerprint, model_identity, require_same
from rlobj.evaluation.problem_sets import (
    LONGEST,
    Overrides,
    Problems,
    ProblemSet,
    named_problems,
    problem_sets,
)
from rlobj.evaluation.protocols import Protocol, find_protocol
from rlobj.rewards.kinds import Exact
from rlobj.runs.manifest import write_manifest
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.building import compose
from rlobj.settings.layers import Layer, nested
from rlobj.settings.profiles import PROFILES


def located(model: str) -> Any:
    return find_model(model).locate()


def asked(
    model: str,
    on: Problems = None,
    settings: dict[str, tuple[str, Any]] | None = None,
    *,
    layers: list[Layer] | None = None,
    protocol: Protocol | None = None,
    data_dir: Path | None = None,
) -> list[ProblemSet]:
    """The problem sets; `settings` are by flag, (dotted path, value)."""
    given = [(flag, nested(*pair)) for flag, pair in (settings or {}).items()]
    overrides = Overrides([*(layers or []), *given], protocol, data_dir)
    names = named_problems(on)
    return problem_sets(names, find_model(model, problems=names).layer, overrides)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Three problems in a file."""
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(f'{{"problem": "{i}+1?", "answer": "{i + 1}"}}\n' for i in range(3)))
    return file


@pytest.fixture
def run(tmp_path: Path, problems: Path) -> Path:
    """A run's folder with checkpoints that hold no model."""
    own: dict[str, Any] = {
        "data": {"source": str(problems), "template": "Q: {prompt}", "test": str(problems)},
        "rewards": {"kind": "exact"},
        "sampling": {"max_tokens": 7},
        "evaluation": {"temperature": 0.5, "samples": 9},
    }
    return saved_run(tmp_path / "run", "stapo", own, 2, 10)


def saved_run(folder: Path, preset: str, own: dict[str, Any], *steps: int) -> Path:
    """The folder of a run with checkpoints that hold no model."""
    made = RunFolder(folder)
    made.create(compose(preset, [("test", {"model": {"name": "some/model"}, **own})]))
    for step in steps:
        write_checkpoint(made, step)
    return made.path


def write_checkpoint(run: RunFolder, step: int) -> None:
    """A checkpoint whose files are empty."""
    place = run.checkpoints / f"step-{step:06d}"
    names = "state.json model/config.json model/model.safetensors optimizer/0 random/0"
    for file in map(place.joinpath, names.split()):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    write_manifest(place)


def test_a_run_has_its_newest_model_its_problems_and_its_settings(run: Path) -> None:
    [benchmark] = asked(str(run))
    assert located(str(run)) == str(run / "checkpoints" / "step-000010" / "model")
    assert len(benchmark.problems) == 3
    assert benchmark.config.data.template == "Q: {prompt}"
    assert benchmark.config.rewards.kind == "exact"
    settings = benchmark.settings
    assert (settings.temperature, settings.max_tokens, settings.top_k) == (0.5, 7, 0)


def test_single_settings_win_over_the_run(run: Path) -> None:
    settings = {
        "--temperature": ("evaluation.temperature", 0.0),
        "--limit": ("data.limit", 2),
        "--reward": ("rewards.kind", "math"),
        "-n": ("evaluation.samples", 1),
    }
    [benchmark] = asked(str(run), None, settings)
    assert benchmark.settings.temperature == 0
    assert len(benchmark.problems) == 2
    assert (benchmark.config.rewards.kind, benchmark.config.evaluation.samples) == ("math", 1)


def test_a_run_on_several_sources_has_held_out_problems_of_all(tmp_path: Path) -> None:
    files = [tmp_path / "aa.jsonl", tmp_path / "bb.jsonl"]
    for file in files:
        file.write_text("".join(f'{{"problem": "{i}?", "answer": "{i}"}}\n' for i in range(60)))
    sources = [str(files[0]), {"source": str(files[1]), "template": "B {prompt}"}]
    data = {"source": sources, "test_fraction": 0.3}
    made = saved_run(tmp_path / "run", "grpo", {"data": data}, 2)
    [own] = asked(str(made))
    assert (own.name, own.source) == ("aa+bb (held out)", ", ".join(map(str, files)))
    templates = {each.source: each.template for each in own.problems}
    assert templates == {"aa": MATH_TEMPLATE, "bb": "B {prompt}"}
    [typed] = asked(str(made), None, {"--template": ("data.template", MATH_TEMPLATE)})
    assert {each.template for each in typed.problems} == {MATH_TEMPLATE}
    assert typed.data_digest != own.data_digest


def test_a_task_is_graded_exactly_on_its_test_split(run: Path) -> None:
    [benchmark] = asked(str(run), "addition")
    assert benchmark.config.data.template == PLAIN_TEMPLATE
    assert benchmark.config.rewards.kind == "exact"
    assert benchmark.problems == TASKS["addition"].problems("test")


@pytest.mark.parametrize("as_list", [False, True])
def test_a_file_is_asked_whole_and_graded_as_mathematics(problems: Path, as_list: bool) -> None:
    on: Problems = [problems, "max-digits"] if as_list else f"{problems}, max-digits"
    first, second = asked("some/model", on)
    assert len(first.problems) == 3
    assert (first.config.rewards.kind, first.config.data.template) == ("math", MATH_TEMPLATE)
    assert (first.settings.max_tokens, first.settings.temperature) == (1024, 1.0)
    assert second.config.rewards.kind == "exact"
    assert located("some/model") == "some/model"


def test_the_embedded_policy_has_a_task_of_its_own() -> None:
    [benchmark] = asked("embedded")
    assert benchmark.name.startswith("scratchpad")
    assert benchmark.settings.max_tokens == PROFILES["scratchpad"]["sampling"]["max_tokens"]
    assert benchmark.config.rewards == Exact(after="#")


def test_error_if_a_model_object_has_no_tokenizer() -> None:
    with pytest.raises(ConfigError, match="model is a dict object: pass its tokenizer"):
        find_model({})
    with pytest.raises(ConfigError, match="tokenizer= is for a model object"):
        find_model("some/model", tokenizer=object())


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Files of two benchmarks."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name, count in (("aime24", 30), ("math500", 4)):
        rows = (f'{{"id": "{name}-{i}", "problem": "{i}?", "answer": "{i}"}}' for i in range(count))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def test_benchmarks_are_read_from_files_by_name(data_dir: Path) -> None:
    aime, math = asked("some/model", "AIME-24,math500", data_dir=data_dir)
    assert (aime.name, len(aime.problems), len(math.problems)) == ("aime24", 30, 4)
    assert aime.config.data.template == MATH_TEMPLATE
    assert (aime.config.rewards.kind, aime.settings.max_tokens) == ("math", LONGEST)
    assert aime.lower_to_context
    assert not aime.notes
    assert any("500" in note for note in math.notes)  # 4 problems are not all
    assert aime.data_digest != math.data_digest


def test_single_settings_change_a_protocol(data_dir: Path) -> None:
    settings = {"--top-p": ("evaluation.top_p", 0.5)}
    protocol = find_protocol("stapo")
    aime, math = asked(
        "some/model", "aime24,math500", settings, protocol=protocol, data_dir=data_dir
    )
    assert (aime.config.evaluation.samples, math.config.evaluation.samples) == (32, 4)
    assert (aime.settings.temperature, aime.settings.top_p) == (0.7, 0.5)
    assert (aime.settings.max_tokens, aime.lower_to_context) == (20480, False)


def test_sources_of_one_name_are_refused(tmp_path: Path, problems: Path) -> None:
    other = tmp_path / "other" / problems.name
    other.parent.mkdir()
    other.write_text(problems.read_text())
    with pytest.raises(ConfigError, match=r"several sources are called problems\.jsonl"):
        asked("some/model", f"{problems},{other}")


def test_a_run_tested_on_a_benchmark_is_asked_as_in_training(tmp_path, data_dir):
    own = {
        "data": {"source": "dapo-math-17k", "test": "aime24"},
        "sampling": {"max_tokens": 7},
    }
    made = saved_run(tmp_path / "run", "stapo", own, 2)
    [aime] = asked(str(made), data_dir=data_dir)
    assert (aime.name, aime.config.data.template) == ("aime24", MATH_TEMPLATE)
    assert aime.settings.max_tokens == 7
    settings = {"--template": ("data.template", "Q: {prompt}")}
    [aime] = asked(str(made), None, settings, data_dir=data_dir)
    assert aime.config.data.template == "Q: {prompt}"


def test_sampling_settings_of_training_are_refused_with_those_of_evaluation() -> None:
    layer = ("--set sampling.top_k=20", {"sampling": {"top_k": 20}})
    with pytest.raises(ConfigError, match=r"Use evaluation\.top_k"):
        asked("some/model", "addition", layers=[layer])
    [benchmark] = asked("some/model", "addition", {"--top-k": ("evaluation.top_k", 20)})
    assert benchmark.settings.top_k == 20


# What an evaluation was begun with, and is continued with.

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
