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
    Caller,
    Problems,
    ProblemSet,
    named_problems,
    problem_sets,
)
from rlobj.evaluation.protocols import Protocol, find_protocol
from rlobj.rewards.kinds import Exact
from rlobj.runs.checkpoints import write_manifest
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.building import compose
from rlobj.settings.layers import Layer, nested


def located(model: str, checkpoint: str | None = None) -> Any:
    return find_model(model, checkpoint=checkpoint).locate()


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
    caller = Caller([*(layers or []), *given], protocol, data_dir)
    names = named_problems(on)
    return problem_sets(names, find_model(model, problems=names).layer, caller)


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


def test_a_run_has_its_newest_model_its_problems_and_its_settings_under_single_ones(run: Path):
    [benchmark] = asked(str(run))
    assert located(str(run)) == str(run / "checkpoints" / "step-000010" / "model")
    assert len(benchmark.problems) == 3
    assert benchmark.config.data.template == "Q: {prompt}"
    assert benchmark.config.rewards.kind == "exact"
    settings = benchmark.settings
    assert (settings.temperature, settings.max_tokens, settings.top_k) == (0.5, 7, 0)
    single = {
        "--temperature": ("evaluation.temperature", 0.0),
        "--limit": ("data.limit", 2),
        "--reward": ("rewards.kind", "math"),
    }
    [benchmark] = asked(str(run), None, single)
    assert (benchmark.settings.temperature, len(benchmark.problems)) == (0, 2)
    assert (benchmark.config.rewards.kind, benchmark.count) == ("math", 9)


def test_the_model_before_training_is_asked_what_a_checkpoint_is_asked(
    run: Path, tmp_path: Path
) -> None:
    for name in ("initial", "0"):
        source = find_model(str(run), checkpoint=name)
        assert (source.locate(), source.name) == ("some/model", f"{run}@initial")
        assert source.layer == find_model(str(run), checkpoint="2").layer
    data = {"model": {"name": None}, "data": {"source": "max-digits"}}
    task = saved_run(tmp_path / "task", "grpo", data, 1)
    assert Path(located(str(task), "initial")).name == "max-digits"
    data = {"data": {"source": "addition"}, "objects": {"model": "Qwen3"}}
    own = saved_run(tmp_path / "own", "grpo", data, 1)
    with pytest.raises(ConfigError, match="own began with a model in memory: name the folder"):
        located(str(own), "initial")
    with pytest.raises(ConfigError, match="checkpoint initial needs a run"):
        located("some/model", "initial")


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


def test_a_file_is_graded_as_mathematics_and_a_task_exactly(problems: Path) -> None:
    for on in ([problems, "max-digits"], f"{problems}, max-digits"):
        first, second = asked("some/model", on)
        assert len(first.problems) == 3
        assert (first.config.rewards.kind, first.config.data.template) == ("math", MATH_TEMPLATE)
        assert (first.settings.max_tokens, first.settings.temperature) == (1024, 1.0)
        assert second.problems == TASKS["max-digits"].problems("test")
        assert (second.config.rewards.kind, second.config.data.template) == (
            "exact",
            PLAIN_TEMPLATE,
        )
    [own] = asked("embedded")
    assert (own.name.split()[0], own.config.rewards) == ("scratchpad", Exact(after="#"))


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


def test_benchmarks_are_read_from_files_under_a_protocol_and_single_settings(data_dir: Path):
    aime, math = asked("some/model", "AIME-24,math500", data_dir=data_dir)
    assert (aime.name, len(aime.problems), len(math.problems)) == ("aime24", 30, 4)
    assert (aime.config.rewards.kind, aime.settings.max_tokens) == ("math", LONGEST)
    assert (aime.lower_to_context, aime.notes) == (True, ())
    assert any("500" in note for note in math.notes)  # 4 problems are not all
    settings, protocol = {"--top-p": ("evaluation.top_p", 0.5)}, find_protocol("stapo")
    aime, math = asked(
        "some/model", "aime24,math500", settings, protocol=protocol, data_dir=data_dir
    )
    assert (aime.count, math.count, aime.settings.max_tokens) == (32, 4, 20480)
    assert (aime.settings.temperature, aime.settings.top_p) == (0.7, 0.5)
    assert not aime.lower_to_context


def test_sources_of_one_name_are_refused(tmp_path: Path, problems: Path) -> None:
    other = tmp_path / "other" / problems.name
    other.parent.mkdir()
    other.write_text(problems.read_text())
    with pytest.raises(ConfigError, match=r"several sources are called problems\.jsonl"):
        asked("some/model", f"{problems},{other}")


def test_a_run_tested_on_a_benchmark_is_asked_as_in_training(tmp_path: Path, data_dir: Path):
    own = {"data": {"source": "dapo-math-17k", "test": "aime24"}, "sampling": {"max_tokens": 7}}
    [aime] = asked(str(saved_run(tmp_path / "run", "stapo", own, 2)), data_dir=data_dir)
    assert (aime.name, aime.config.data.template) == ("aime24", MATH_TEMPLATE)
    assert (aime.settings.max_tokens, aime.lower_to_context) == (7, False)


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


def with_setting(path: str, value: Any) -> dict[str, Any]:
    changed: Any = json.loads(json.dumps(STORED))
    *folders, last = path.split("/")
    inner = changed
    for name in folders:
        inner = inner[name]
    inner[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model/weights", "abd"),
        ("engine/name", "transformers"),
        ("benchmarks/my.jsonl/template", "{prompt} "),
        ("benchmarks/my.jsonl/samples", 2),
    ],
)
def test_error_lists_the_settings_that_differ(path: str, value: Any) -> None:
    name = path.removeprefix("benchmarks/").replace("/", ".")
    with pytest.raises(ConfigError, match=re.escape(f"{value!r} now")) as error:
        require_same("evals/x", STORED, with_setting(path, value))
    assert f"{name}: " in str(error.value)
    assert fingerprint(STORED) != fingerprint(with_setting(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sessions", []),
        ("benchmarks/my.jsonl/samples", 32),
        ("benchmarks/math500", {"samples": 1}),
        ("benchmarks", {"math500": {"samples": 1}}),
        ("benchmarks/my.jsonl/source", "/elsewhere/my.jsonl"),
        ("model/name", "./m"),
        ("model/source", "./m"),
    ],
)
def test_more_samples_other_benchmarks_and_other_places_may_continue(path: str, value: Any) -> None:
    assert differences(STORED, with_setting(path, value)) == []
    require_same("evals/x", {}, with_setting(path, value))


def test_a_model_without_known_weights_is_another_one_elsewhere() -> None:
    hub, other = (STORED | {"model": {"source": source}} for source in ("a/b", "c/d"))
    assert differences(hub, other)


def test_identity_of_a_model_depends_on_every_byte(tmp_path: Path) -> None:
    weights, settings = tmp_path / "model.safetensors", tmp_path / "config.json"
    content = bytearray(range(256)) * 4096
    weights.write_bytes(content)
    settings.write_text("{}")
    first = model_identity(str(tmp_path))
    assert first == model_identity(str(tmp_path))
    for place in (0, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        weights.write_bytes(changed)
        assert model_identity(str(tmp_path))["weights"] != first["weights"]
    settings.write_text('{"rope_theta": 5}')
    assert model_identity(str(tmp_path))["settings"] != first["settings"]
    nowhere = {"weights": None, "settings": None, "revision": None}
    assert model_identity("nobody/no-such-model") == nowhere
