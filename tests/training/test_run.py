"""rlobj.train and rlobj.resume: names and objects in, a run and its result out."""

from __future__ import annotations

import doctest
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import run_ranks
from runs import distance, metrics, same, weights
from safetensors.torch import load_file
from tiny import save_tiny_policy, tiny_config
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import rlobj
from rlobj.base.errors import ConfigError, DataError
from rlobj.config.layers import nested
from rlobj.config.run_config import compose
from rlobj.data import load_problems
from rlobj.samplers import TransformersSampler
from rlobj.training import Callback, RunDirectory, run, run_training
from rlobj_cli.app import app

QUICK = {
    "training.steps": 2,
    "sampling.prompts_per_step": 4,
    "sampling.group_size": 4,
    "sampling.max_tokens": 3,
    "training.learning_rate": 1e-3,
    "training.schedule": "constant",
    "evaluation.every": 0,
    "checkpoint.every": 2,
    "output.tables_every": 0,
}
ROWS = [{"prompt": f"{a},{b}=", "answer": str(max(a, b))} for a in range(4) for b in range(4)]
ROWS_TEMPLATE = {"data.template": "{prompt}"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def loaded(policy: Path) -> tuple[Any, Any]:
    """A model object and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(policy)


def first_digit(response: str, answer: str, **columns: Any) -> float:
    return float(response[:1] == answer)


class Mute:
    """Has one of a sampler's methods."""

    def sample(self) -> None:
        """Return no sample."""


def local_reward() -> Any:
    """A function that no other process can import."""

    def reward(response: str, answer: str, **columns: Any) -> float:
        return float(response[:1] == answer)

    return reward


def steps(path: Path) -> list[int]:
    return [line["step"] for line in RunDirectory(path).lines() if "reward/mean" in line]


# Examples.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "resume"])
def test_the_example_of_the_docstring_runs(name: str) -> None:
    [example] = doctest.DocTestFinder().find(getattr(run, name), name, globs={})
    assert doctest.DocTestRunner().run(example).failed == 0


# The objective.


def test_train_gives_the_run_of_the_same_configuration_to_the_bit(policy: Path) -> None:
    result = rlobj.train(
        "stapo", model=policy, data="max-digits", reward="exact", out="python", settings=QUICK
    )
    layers = [("here", nested(path, value)) for path, value in QUICK.items()]
    names = {"model": {"name": str(policy)}, "data": {"source": "max-digits"}}
    config = compose("stapo", [("names", {**names, "rewards": {"kind": "exact"}}), *layers])
    run_training(config, "config")
    assert metrics(Path("python")) == metrics(Path("config"))
    assert result.history == RunDirectory("python").lines()
    assert (result.path, result.steps) == (Path("python"), 2)
    saved = weights(Path("config"))
    assert same({name: result.model.state_dict()[name] for name in saved}, saved)
    assert (
        result.tokenizer("3,4=").input_ids
        == AutoTokenizer.from_pretrained(policy)("3,4=").input_ids
    )


def test_an_objective_is_trained_as_it_is() -> None:
    mine = rlobj.Objective(surrogate=rlobj.Clip(low=0.1, high=0.4)).drop(rlobj.prob < 0.01)
    rlobj.train(mine, data="max-digits", out="run", settings=QUICK)
    assert RunDirectory.open(Path("run"))[1].objective == mine


def test_a_file_may_be_a_preset_or_a_configuration(policy: Path) -> None:
    """A preset gives way to the embedded profile; a configuration does not."""
    Path("preset.yaml").write_text("base: grpo\nsampling: {max_tokens: 4}\n")
    Path("config.yaml").write_text("preset: grpo\nsampling: {max_tokens: 4}\n")
    Path("neither.yaml").write_text("seed: 3\n")
    for name, expected in (("preset", 1), ("config", 4)):
        rlobj.train(f"{name}.yaml", data="max-digits", out=name, settings={"training.steps": 0})
        assert RunDirectory.open(Path(name))[1].sampling.max_tokens == expected
    with pytest.raises(ConfigError, match=r"neither\.yaml has no objective"):
        rlobj.train("neither.yaml")
    with pytest.raises(ConfigError, match="Did you mean 'stapo'"):
        rlobj.train("stappo")
    with pytest.raises(ConfigError, match="the objective is a int; expected a preset's name"):
        rlobj.train(3)  # type: ignore[arg-type]


def test_settings_stand_above_a_run_config_and_mistakes_are_named_at_once(policy: Path) -> None:
    config = tiny_config(policy, training={"steps": 5})
    rlobj.train(config, out="run", settings={"training.steps": 0, "training": {"threads": 1}})
    assert RunDirectory.open(Path("run"))[1].training.steps == 0
    wrong = {"training.stepz": 3, "sampling.group_size": 0}
    with pytest.raises(ConfigError) as caught:
        rlobj.train(config, settings=wrong)
    assert "training.stepz (from settings): unknown key. Did you mean 'steps'?" in str(caught.value)
    assert "sampling.group_size (from settings)" in str(caught.value)


def test_a_run_without_a_folder_goes_to_runs(policy: Path) -> None:
    result = rlobj.train("grpo", data="max-digits", settings={"training.steps": 0})
    assert result.path.parent == Path("runs")
    assert result.path.name.startswith("grpo-2")
    with pytest.raises(rlobj.RunError, match="no checkpoint yet"):
        _ = result.model


# Objects.


def test_objects_give_the_run_of_the_names_they_replace(
    policy: Path, loaded: tuple[Any, Any]
) -> None:
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    common = {**QUICK, **ROWS_TEMPLATE, "evaluation.every": 2, "evaluation.samples": 1}
    rlobj.train(
        "stapo", model=policy, data="rows.jsonl", eval_on="rows.jsonl", reward="exact",
        out="names", settings=common,
    )  # fmt: skip
    model, tokenizer = loaded
    result = rlobj.train(
        "stapo",
        model=model,
        tokenizer=tokenizer,
        data=iter(ROWS),
        eval_on=ROWS,
        reward=lambda response, answer, **columns: response.strip() == answer,
        sampler=TransformersSampler(model, tokenizer),
        out="objects",
        settings=common,
    )
    assert metrics(Path("objects")) == metrics(Path("names"))
    assert same(weights(Path("objects")), weights(Path("names")))
    assert result.model is model
    assert not model.training


def test_held_out_rows_come_from_the_data_by_test_fraction(policy: Path) -> None:
    seen: list[Any] = []

    class Watch(Callback):
        def evaluated(self, step: int, summary: Any) -> None:
            seen.append(summary)

    settings = {**QUICK, "evaluation.every": 2, "data.test_fraction": 0.5, "training.steps": 1}
    rlobj.train("grpo", data=ROWS, out="run", settings=settings, callbacks=[Watch()])
    assert len(seen) == 2


def test_own_problems_and_reward_train_the_embedded_policy() -> None:
    Path("mine.jsonl").write_text('{"prompt": "1+2+3=", "answer": "6"}\n')
    Path("mine.py").write_text(
        "def score(response, answer, **columns):\n    return len(response)\n"
    )
    result = rlobj.train(
        "grpo", model="embedded", data="mine.jsonl", reward="mine.py:score", out="run",
        settings=QUICK,
    )  # fmt: skip
    assert result.history[-1]["reward/mean"] > 0
    config = RunDirectory.open(Path("run"))[1]
    assert config.model.name is None
    assert config.data.source == str(Path("mine.jsonl").absolute())
    assert config.rewards.target == f"{Path('mine.py').absolute()}:score"  # type: ignore[attr-defined]


def test_a_character_that_the_embedded_policy_cannot_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'What is 1\+2' contains 'Whatis'.*--model"):
        rlobj.train("grpo", data=[{"prompt": "What is 1+2", "answer": "3"}], out="run")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"model": torch.nn.Linear(1, 1)}, "model is a Linear object: pass its tokenizer"),
        ({"model": "embedded", "tokenizer": object()}, "tokenizer= is for a model object"),
        ({"data": 3}, "data is a int; expected a name, a path, or an iterable of dicts"),
        ({"data": {"prompt": "1"}}, "data is a dict; expected"),
        ({"data": ["1+1="]}, "row 1: expected a mapping such as"),
        ({"data": [{"answer": "1"}]}, "row 1"),
        ({"reward": 3}, "reward is a int; expected a kind"),
        ({"reward": "exct"}, "Did you mean 'exact'"),
        ({"sampler": 3}, "sampler is a int; expected transformers"),
        ({"sampler": "transfomers"}, "Did you mean 'transformers'"),
        ({"sampler": Mute()}, "an rlobj.Sampler: it has no dtype, sync, received, sleep, close"),
        ({"model": torch.nn.Linear(1, 1), "tokenizer": 3}, "expected a hub id, a folder, or a"),
        ({"settings": ["training.steps=3"]}, "expected a dict such as"),
        ({"settings": {3: 1}}, "expected a dict such as"),
        ({"processes": "2"}, "expected a whole number of at least 1"),
        ({"processes": 0}, "expected a whole number of at least 1"),
        ({"callbacks": [print]}, "expected a list of rlobj.Callback objects"),
        ({"model": "./nowhere", "data": "addition"}, "no run or model folder './nowhere'"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_with_what_was_expected(
    arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        rlobj.train("stapo", out="run", **arguments)
    assert expected in str(caught.value)
    assert not Path("run").exists()


def test_an_objective_with_columns_of_its_own_is_refused() -> None:
    objective = rlobj.Objective(columns=["turn"]).keep("turn > 0")
    with pytest.raises(ConfigError, match=r"objective.columns: turn: .* in your own loop"):
        rlobj.train(objective)


def test_two_runs_of_one_second_have_their_own_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = []
    for _ in range(20):  # some of them in the same second
        folders.append(run.default_folder(compose("stapo")))
        folders[-1].mkdir(parents=True)
    assert len(set(folders)) == 20


# Several processes.


def test_objects_are_refused_with_several_processes(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    with pytest.raises(ConfigError, match=r"passed as model, reward\. Start .* torchrun"):
        rlobj.train(
            "stapo", model=model, tokenizer=tokenizer, data="addition", reward=local_reward(),
            processes=2,
        )  # fmt: skip
    with pytest.raises(ConfigError, match=r"passed as callbacks\. Start .* torchrun"):
        rlobj.train("stapo", processes=2, callbacks=[Callback()])


def test_a_function_that_other_processes_can_import_is_recorded_by_its_name() -> None:
    settings = {**QUICK, "training.steps": 0}
    rlobj.train("grpo", data="max-digits", reward=first_digit, out="run", settings=settings)
    config = RunDirectory.open(Path("run"))[1]
    assert config.rewards.target == f"{__name__}:first_digit"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_two_processes_train_the_run_of_one(policy: Path) -> None:
    Path("mine.py").write_text(SCORE)
    reward = "mine.py:score"
    names = {"model": save_tiny_policy(Path("policy")), "data": "max-digits", "reward": reward}
    one = rlobj.train("grpo", **names, out="one", settings=QUICK)
    two = rlobj.train("grpo", **names, out="two", settings=QUICK, processes=2)
    assert two.steps == 2
    for a, b in zip(one.history, two.history, strict=True):
        assert a["reward/mean"] == pytest.approx(b["reward/mean"])
    two = rlobj.resume("two", settings={"training.steps": 3}, processes=2, reward=reward)
    assert steps(two.path) == [1, 2, 3]


SCORE = """
from rlobj import Clip

def score(response, answer, **columns):
    return float(response == answer)

class Mine(Clip):
    pass
"""

TORCHRUN = """
import sys
import torch
import yaml
import rlobj
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])

def reward(response, answer, **columns):
    return float(response.strip() == answer)

result = rlobj.train(
    "grpo", model=model, tokenizer=tokenizer, data="max-digits", reward=reward, out="two",
    settings={"training.steps": 2, "sampling.max_tokens": 2, "sampling.prompts_per_step": 4},
)
assert result.model is model
"""


@pytest.mark.slow
def test_objects_are_trained_in_the_processes_of_torchrun(policy: Path) -> None:
    settings = {"training.steps": 2, "sampling.max_tokens": 2, "sampling.prompts_per_step": 4}
    names = {"data": "max-digits", "reward": "exact"}
    rlobj.train("grpo", model=policy, **names, out="one", settings=settings)
    Path("script.py").write_text(TORCHRUN)
    run_ranks(["script.py", policy])
    one, two = ([line.get("reward/mean") for line in metrics(Path(run))] for run in ("one", "two"))
    assert one == pytest.approx(two)
    assert RunDirectory.open(Path("two"))[1].model.name == "<Python object: Qwen3ForCausalLM>"


# Resuming.


def test_resume_continues_a_run_under_its_own_configuration(policy: Path) -> None:
    names = {"model": policy, "data": "max-digits", "reward": "exact"}
    rlobj.train("stapo", **names, out="whole", settings={**QUICK, "training.steps": 4})
    rlobj.train("stapo", **names, out="cut", settings=QUICK)
    result = rlobj.resume("cut", settings={"training.steps": 4})
    assert steps(result.path) == [1, 2, 3, 4]
    assert metrics(Path("cut")) == metrics(Path("whole"))
    assert same(weights(Path("cut")), weights(Path("whole")))
    again = rlobj.resume("cut")
    assert (again.steps, again.history) == (4, result.history)


def test_resume_refuses_what_would_change_results(policy: Path) -> None:
    rlobj.train("stapo", model=policy, data="max-digits", out="run", settings=QUICK)
    with pytest.raises(ConfigError, match=r"Leave out: settings training\.weight_decay"):
        rlobj.resume("run", settings={"training.weight_decay": 1.0, "training.steps": 4})
    with pytest.raises(ConfigError, match=r"training\.steps=1: run has 2 steps done already"):
        rlobj.resume("run", settings={"training.steps": 1})
    with pytest.raises(ConfigError, match="nowhere is not a run"):
        rlobj.resume("nowhere")


def test_code_of_a_run_is_imported_only_if_it_is_named_again_or_trusted(policy: Path) -> None:
    """The file has changed since, and would tell if it were imported."""
    Path("mine.py").write_text(SCORE)
    reward, longer = "mine.py:score", {"training.steps": 3}
    names = {"model": policy, "data": "max-digits", "reward": reward}
    rlobj.train("grpo", **names, out="reward", settings=QUICK)
    surrogate = {"objective.surrogate": {"kind": "custom", "target": "mine.py:Mine"}}
    rlobj.train("grpo", **names, out="both", settings={**QUICK, **surrogate})
    hidden = Path(shutil.copytree("reward", "hidden")) / "config.resolved.yaml"
    stored = yaml.safe_load(hidden.read_text())
    stored["objective"]["drop"] = "custom('mine.py:Mine')"
    hidden.write_text(yaml.safe_dump(stored))
    Path("mine.py").write_text(f"{SCORE}\nopen('imported', 'w').close()")
    for refused, code in (
        (lambda: rlobj.resume("hidden", settings=longer, reward=reward), r"mine\.py:Mine'\. It is"),
        (lambda: rlobj.train(from_run="hidden", reward=reward), r"mine\.py:Mine'\. It is"),
        (lambda: rlobj.resume("reward", settings=longer), r"mine\.py:score\. It would"),
        (lambda: rlobj.resume("both", settings=longer, reward=reward), r"code: mine\.py:Mine\. It"),
        (lambda: rlobj.resume("both", settings=longer), r"code: mine\.py:Mine, .*mine\.py:score\."),
        (lambda: rlobj.evaluate("both", n=1, limit=4), r"code: .*mine\.py:score\. .* --trust"),
    ):
        with pytest.raises(ConfigError, match=code):
            refused()
    assert rlobj.evaluate("both", "max-digits", n=1, limit=4, reward="exact").path is None
    assert not Path("imported").exists()
    assert rlobj.evaluate("both", n=1, limit=4, reward=reward).path is None
    assert rlobj.resume("reward", settings=longer, reward=reward).steps == 3
    assert rlobj.resume("both", settings=longer, trust=True).steps == 3
    assert Path("imported").exists()


def test_a_change_on_resume_is_recorded_and_a_dead_engine_replaced(
    policy: Path, loaded: tuple[Any, Any]
) -> None:
    settings = {**QUICK, "training.warmup_steps": 0}
    given = {"data": "max-digits", "reward": "exact", "settings": settings}
    sampler = TransformersSampler(*loaded, own_copy=True)
    rlobj.train("stapo", model=policy, sampler=sampler, **given, out="run")
    with pytest.raises(ConfigError, match=r"Pass them again: .*sampler=\.\.\."):
        rlobj.resume("run", settings={"training.steps": 3})
    words = ["--sampler", "transformers", "--set", "training.learning_rate=5e-4"]
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    shown = runner.invoke(app, ["train", "--resume", "run", *words, "--set", "training.steps=3"])
    assert shown.exit_code == 0, shown.output
    assert "training.learning_rate 0.001 → 0.0005" in shown.output
    result = rlobj.resume("run", settings={"training.steps": 4, "evaluation.problems": 8})
    assert [line["train/learning_rate"] for line in result.history] == [1e-3, 1e-3, 5e-4, 5e-4]
    sessions = [json.loads(line) for line in Path("run/sessions.jsonl").read_text().splitlines()]
    assert [session.get("changed") for session in sessions] == [
        None,
        {"sampling.engine": ["object", "transformers"], "training.learning_rate": [1e-3, 5e-4]},
        {"evaluation.problems": [256, 8]},
    ]
    expected = "changed after step 2: training.learning_rate 0.001 → 0.0005"
    assert expected in rlobj.diagnose("run").runs[0].notes


def test_another_configuration_does_not_overwrite_that_of_a_run(policy: Path) -> None:
    rlobj.train(tiny_config(policy, "stapo", training={"steps": 1}), out="run")
    before = (Path("run") / "config.resolved.yaml").read_text()
    with pytest.raises(ConfigError, match="run is resumed with the settings it was started with"):
        run_training(tiny_config(policy, "gpg", training={"steps": 2}), "run", resume=True)
    assert (Path("run") / "config.resolved.yaml").read_text() == before


def test_a_run_of_objects_needs_them_again(loaded: tuple[Any, Any], policy: Path) -> None:
    model, tokenizer = loaded
    settings = {**QUICK, **ROWS_TEMPLATE}
    objects = {"data": ROWS, "reward": local_reward()}
    rlobj.train(
        "stapo", model=policy, **objects, out="whole", settings={**settings, "training.steps": 4}
    )
    rlobj.train("stapo", model=model, tokenizer=tokenizer, **objects, out="run", settings=settings)
    with pytest.raises(ConfigError) as caught:
        rlobj.resume("run", settings={"training.steps": 4})
    assert "Pass them again: rlobj.resume('run', model=..., data=..., reward=...)" in str(
        caught.value
    )
    fresh = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"another reward: rewards is .*local_reward"):
        rlobj.resume("run", model=fresh, tokenizer=tokenizer, data=ROWS, reward="exact")
    before = Path("run/config.resolved.yaml").read_bytes()
    with pytest.raises(DataError, match="another data set"):
        rlobj.resume(
            "run", model=fresh, tokenizer=tokenizer, data=ROWS[1:], reward=local_reward(),
            settings={"training.steps": 4},
        )  # fmt: skip
    assert Path("run/config.resolved.yaml").read_bytes() == before  # a refusal changes nothing
    result = rlobj.resume(
        "run", model=fresh, tokenizer=tokenizer, **objects, settings={"training.steps": 4}
    )
    assert result.model is fresh
    assert metrics(Path("run")) == metrics(Path("whole"))
    assert same(weights(Path("run")), weights(Path("whole")))


def test_what_was_passed_from_python_is_not_searched_for_as_a_file() -> None:
    settings = {**QUICK, "training.steps": 0}
    rlobj.train("grpo", data=ROWS, reward=local_reward(), out="run", settings=settings)
    config = RunDirectory.open(Path("run"))[1]
    with pytest.raises(DataError, match=r"'<Python object: rows>' was passed from Python"):
        load_problems(config.data, "train")
    with pytest.raises(ConfigError, match=r"'<Python object: .*reward>' was passed from Python"):
        config.rewards.open()


def test_an_object_is_refused_by_a_run_that_was_started_with_a_name(policy: Path) -> None:
    rlobj.train("grpo", data="max-digits", out="run", settings=QUICK)
    with pytest.raises(
        ConfigError, match=r"data\.source is 'max-digits', and would be '<Python obj"
    ):
        rlobj.resume("run", data=ROWS)


def test_resume_warns_when_more_steps_stretch_a_schedule(
    policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**QUICK, "training.steps": 1, "training.schedule": "linear"}
    rlobj.train("grpo", data="max-digits", out="run", settings=settings)
    with caplog.at_level(logging.WARNING, "rlobj"):
        rlobj.resume("run", settings={"training.steps": 2})
    assert "schedule is linear and now covers 2 steps" in caplog.text


# Starting from another run.


def test_a_new_run_starts_from_the_policy_of_a_checkpoint(policy: Path) -> None:
    names = {"model": policy, "data": "max-digits", "reward": "exact"}
    settings = {**QUICK, "checkpoint.every": 1, "training.warmup_steps": 0}
    rlobj.train("stapo", **names, out="old", settings={**settings, "training.steps": 3})
    with pytest.raises(ConfigError, match=r"old has no checkpoint 1; expected one of 2, 3, newest"):
        rlobj.train(from_run="old@1")
    with pytest.raises(ConfigError, match=r"--from old and the model .* both name a policy"):
        rlobj.train(from_run="old", model=policy)
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    words = ["train", "--from", "old@2", "--set", "training.learning_rate=5e-4", "--out", "new"]
    shown = runner.invoke(app, [*words, "--set", "training.steps=1", "--preset", "grpo"])
    assert shown.exit_code == 0, shown.output
    config = RunDirectory.open(Path("new"))[1]
    assert config.origin == f"{Path('old').absolute()}@2"
    assert (config.preset, config.training.learning_rate) == ("grpo", 5e-4)
    assert config.objective == compose("grpo").objective
    assert config.sampling == RunDirectory.open(Path("old"))[1].sampling
    started = load_file("old/checkpoints/step-000002/model/model.safetensors")
    assert same(load_file("new/initial/model.safetensors"), started)
    assert not same(weights(Path("new")), started)
    shutil.rmtree("old")  # the new run needs nothing of it
    result = rlobj.resume("new", settings={"training.steps": 2})
    assert steps(result.path) == [1, 2]
    assert "changed" not in Path("new/sessions.jsonl").read_text()


def test_a_run_from_the_embedded_policy_goes_on_without_its_checkpoint_being_trusted() -> None:
    Path("mine.py").write_text(SCORE)
    rlobj.train("grpo", data="max-digits", reward="mine.py:score", out="old", settings=QUICK)
    with pytest.raises(ConfigError, match=r"old name code: .*mine\.py:score\. .*--trust"):
        rlobj.train(from_run="old")
    before = weights(Path("old"))
    still = {"training.steps": 1, "training.learning_rate": 1e-12}
    result = rlobj.train(from_run="old", reward="mine.py:score", out="new", settings=still)
    assert distance(weights(result.path), before) < 1e-6
