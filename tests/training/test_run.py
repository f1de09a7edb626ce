"""rlobj.train and rlobj.resume: names and objects in, a run and its result out."""

from __future__ import annotations

import doctest
import gc
import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import run_ranks
from runs import (
    QUICK,
    ROWS,
    ROWS_TEMPLATE,
    local_reward,
    metrics,
    same,
    weights,
)
from tiny import tiny_config
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlobj
from rlobj.base.errors import ConfigError, DataError
from rlobj.runs.configuration import read_run_config
from rlobj.runs.run_folder import RunFolder
from rlobj.samplers import TransformersSampler
from rlobj.settings.building import compose
from rlobj.settings.layers import nested
from rlobj.training import Callback, run, run_training
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.result import TrainingResult
from rlobj.training.new_run import new_folder, open_new
from rlobj.training.resolving import ResolvedRun


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def loaded(policy):
    """A model object and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(policy)


def first_digit(response: str, answer: str, **columns: Any) -> float:
    return float(response[:1] == answer)


def test_progress_is_shown_on_stderr_and_can_be_turned_off(
    capfd: pytest.CaptureFixture[str],
) -> None:
    settings = {**QUICK, "training.steps": 2}
    run = rlobj.train("grpo", data="max-digits", settings=settings).path
    shown = capfd.readouterr()
    assert "policy    embedded" in shown.err
    assert shown.err.count("step 1/2  reward ") == shown.err.count("step 2/2  reward ") == 1
    rlobj.resume(run, settings={"training.steps": 3})
    resumed = capfd.readouterr()
    assert "step 3/3  reward " in resumed.err
    assert "step 2/3" not in resumed.err
    rlobj.evaluate("embedded", on="max-digits", n=1, limit=2)
    assert "policy    " in capfd.readouterr().err
    rlobj.train("grpo", data="max-digits", settings=settings, progress=False)
    rlobj.resume(run, settings={"training.steps": 4}, progress=False)
    rlobj.evaluate("embedded", on="max-digits", n=1, limit=2, progress=False)
    quiet = capfd.readouterr()
    assert quiet.err == shown.out == resumed.out == quiet.out == ""


class Interrupting(Callback):
    """Ctrl-C in the first step, a number of times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def phase(self, name: str) -> None:
        """Interrupt the updates."""
        if name == "updating":
            if self.times > 1:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def handled_sigint() -> Iterator[None]:
    """SIGINT has Python's handler; a shell lets what it starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("handled_sigint")
@pytest.mark.parametrize(
    ("data", "command"),
    [("max-digits", "rlobj resume run"), (ROWS, "rlobj.resume('run', data=...)")],
    ids=["names", "objects"],
)
def test_after_ctrl_c_a_run_says_how_to_go_on(
    data: Any, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {**QUICK, **ROWS_TEMPLATE}
    given: dict[str, Any] = {"data": data, "model": "embedded", "settings": settings}
    result = rlobj.train("grpo", **given, out="run", callbacks=[Interrupting(1)])
    assert result.steps == 1
    advice = f"Stopped with the newest checkpoint at step 1. Continue with:\n  {command}\n"
    assert capfd.readouterr().err.endswith(advice)
    with pytest.raises(KeyboardInterrupt) as caught:
        rlobj.train("grpo", **given, out="again", callbacks=[Interrupting(2)])
    [note] = caught.value.__notes__
    again = command.replace("run", "again")
    assert note == f"Stopped with no checkpoint yet. Continue with:\n  {again}"


class Noting(Callback):
    """Notes what a run is and how it ends."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def opened(self, run: ResolvedRun) -> None:
        """Note the settings and the steps done."""
        self.events.append((run.config.seed, run.layers[-1][0], run.done, run.path.exists()))

    def ended(self, result: TrainingResult) -> None:
        """Note the steps."""
        self.events.append(result.steps)


def test_callbacks_are_told_what_a_run_is_and_how_it_ends() -> None:
    noting = Noting()
    Path("mine.yaml").write_text("seed: 3\n")
    given: dict[str, Any] = {"data": "max-digits", "settings": QUICK, "config": "mine.yaml"}
    dry = rlobj.train("grpo", **given, out="run", dry_run=True, callbacks=[noting])
    assert dry.steps == 0
    assert not dry.path.exists()
    run = rlobj.train("grpo", **given, out="run", callbacks=[noting]).path
    for _ in range(2):
        rlobj.resume(run, settings={"training.steps": 3}, callbacks=[noting])
    new = (3, "settings", 0, False)
    resumed = [(3, "settings", done, True) for done in (2, 3)]
    assert noting.events == [new, new, 2, resumed[0], 3, resumed[1], 3]


def test_a_dry_run_tries_the_objects_of_the_caller() -> None:
    rows = [{"prompt": f"{a}+{a}=", "answer": str(2 * a)} for a in range(5)]

    def broken(response: str, answer: str, **columns: Any) -> str:
        return "no number"

    with pytest.raises(ConfigError, match="broken"):
        rlobj.train("stapo", data=rows, reward=broken, dry_run=True)
    noting = Noting()
    reward = {"length": lambda response, answer, **columns: float(len(response))}
    rlobj.train("stapo", data=rows, reward=reward, dry_run=True, callbacks=[noting])
    assert len(noting.events) == 1


def test_a_reader_of_the_progress_that_goes_away_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    assert (
        rlobj.train("grpo", data="max-digits", settings={**QUICK, "training.steps": 2}).steps == 2
    )


def test_a_file_with_the_name_of_a_preset_is_not_read_in_its_place() -> None:
    Path("grpo").write_text("some notes: about grpo")
    assert open_new("grpo").config.preset == "grpo"


# Examples.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "resume"])
def test_the_example_of_the_docstring_runs(name):
    [example] = doctest.DocTestFinder().find(getattr(run, name), name, globs={})
    assert doctest.DocTestRunner().run(example).failed == 0


# The objective.


def test_train_gives_the_run_of_the_same_configuration_to_the_bit(policy):
    result = rlobj.train(
        "stapo", model=policy, data="max-digits", reward="exact", out="python", settings=QUICK
    )
    layers = [("here", nested(path, value)) for path, value in QUICK.items()]
    names = {"model": {"name": str(policy)}, "data": {"source": "max-digits"}}
    config = compose("stapo", [("names", {**names, "rewards": {"kind": "exact"}}), *layers])
    run_training(config, "config")
    assert metrics(Path("python")) == metrics(Path("config"))
    assert result.history == RunFolder("python").lines()
    assert (result.path, result.steps) == (Path("python"), 2)
    saved = weights(Path("config"))
    assert same({name: result.model.state_dict()[name] for name in saved}, saved)
    assert (
        result.tokenizer("3,4=").input_ids
        == AutoTokenizer.from_pretrained(policy)("3,4=").input_ids
    )


def test_an_objective_is_trained_as_it_is():
    mine = rlobj.Objective(surrogate=rlobj.Clip(low=0.1, high=0.4)).drop(rlobj.prob < 0.01)
    rlobj.train(mine, data="max-digits", out="run", settings=QUICK)
    assert read_run_config(Path("run")).objective == mine


def test_a_file_may_be_a_preset_or_a_configuration(policy):
    """A preset gives way to the embedded profile; a configuration does not."""
    Path("preset.yaml").write_text("base: grpo\nsampling: {max_tokens: 4}\n")
    Path("config.yaml").write_text("preset: grpo\nsampling: {max_tokens: 4}\n")
    Path("neither.yaml").write_text("seed: 3\n")
    for name, expected in (("preset", 1), ("config", 4)):
        rlobj.train(f"{name}.yaml", data="max-digits", out=name, settings={"training.steps": 0})
        assert read_run_config(Path(name)).sampling.max_tokens == expected
    with pytest.raises(ConfigError, match="no objective: name a preset"):
        rlobj.train("neither.yaml")
    with pytest.raises(ConfigError, match="Did you mean 'stapo'"):
        rlobj.train("stappo")


def test_settings_stand_above_a_run_config_and_mistakes_are_named_at_once(policy):
    config = tiny_config(policy, training={"steps": 5})
    rlobj.train(config, out="run", settings={"training.steps": 0, "training": {"threads": 1}})
    assert read_run_config(Path("run")).training.steps == 0
    wrong = {"training.stepz": 3, "sampling.group_size": 0}
    with pytest.raises(ConfigError) as caught:
        rlobj.train(config, settings=wrong)
    text = str(caught.value)
    assert "training.stepz (from settings): unknown key. Did you mean 'training.steps'?" in text
    assert "sampling.group_size (from settings)" in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about runs on a CPU")
@pytest.mark.parametrize(
    ("small", "settings", "words"),
    [
        (10**6, {}, "1 thread"),
        (10**6, {"training.threads": 2}, "2 threads"),
        (1, {}, "3 threads"),
    ],
)
def test_small_policies_have_one_thread_and_the_header_says_how_many(
    policy, monkeypatch, small, settings, words
):
    class Header(Callback):
        def started(self, facts):
            assert facts["device"] == f"cpu, float32, {words}"
            shown.append(torch.get_num_threads())

    shown: list[int] = []
    monkeypatch.setattr("rlobj.models.threads.SMALL", small)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    config = tiny_config(policy, training={"steps": 0})
    rlobj.train(config, settings=settings, callbacks=[Header()])
    assert (shown, torch.get_num_threads()) == ([int(words[0])], 3)
    torch.set_num_threads(before)


def test_a_run_looks_for_cycles_less_often_and_leaves_the_collector_as_it_was(policy):
    class Watching(Callback):
        def stepped(self, step, metrics):
            inside.append(gc.get_threshold())

    inside, before = [], gc.get_threshold()
    rlobj.train(tiny_config(policy, training={"steps": 1}), callbacks=[Watching()])
    assert inside[0][0] > before[0]
    assert inside[0][1:] == before[1:]
    assert gc.get_threshold() == before


def test_a_run_without_a_folder_goes_to_runs(policy):
    result = rlobj.train("grpo", data="max-digits", settings={"training.steps": 0})
    assert result.path.parent == Path("runs")
    assert result.path.name.startswith("grpo-2")
    with pytest.raises(rlobj.RunError, match="no checkpoint yet"):
        _ = result.model


# Objects.


def test_objects_give_the_run_of_the_names_they_replace(policy, loaded):
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    common = {**QUICK, **ROWS_TEMPLATE, "evaluation.every": 2, "evaluation.samples": 1}
    rlobj.train(
        "stapo", model=policy, data="rows.jsonl", eval_on="rows.jsonl", reward="exact",
        out="names", settings=common,
    )  # fmt: skip
    model, tokenizer = loaded

    def exact(response: str, answer: str, **columns: Any) -> dict[str, bool]:
        right = response.strip() == answer
        return {"reward": right, "correct": right}

    result = rlobj.train(
        "stapo",
        model=model,
        tokenizer=tokenizer,
        data=iter(ROWS),
        eval_on=ROWS,
        reward=exact,
        sampler=TransformersSampler(model, tokenizer),
        out="objects",
        settings=common,
    )
    assert metrics(Path("objects")) == metrics(Path("names"))
    assert same(weights(Path("objects")), weights(Path("names")))
    assert result.model is model
    assert not model.training


def test_a_model_object_must_have_float32_weights(loaded):
    model, tokenizer = loaded
    with pytest.raises(ConfigError, match=r"has bfloat16 weights; expected float32"):
        rlobj.train("grpo", model=model.bfloat16(), tokenizer=tokenizer, data="max-digits")


def test_own_problems_and_reward_train_the_embedded_policy():
    Path("mine.jsonl").write_text('{"prompt": "1+2+3=", "answer": "6"}\n')
    Path("mine.py").write_text(
        "def score(response, answer, **columns):\n    return len(response)\n"
    )
    result = rlobj.train(
        "grpo", model="embedded", data="mine.jsonl", reward="mine.py:score", out="run",
        settings=QUICK,
    )  # fmt: skip
    assert result.history[-1]["reward/mean"] > 0
    config = read_run_config(Path("run"))
    assert config.model.name is None
    assert config.data.source == str(Path("mine.jsonl").absolute())
    assert config.rewards.target == f"{Path('mine.py').absolute()}:score"  # type: ignore[attr-defined]


def test_a_character_that_the_embedded_policy_cannot_read_is_named():
    with pytest.raises(ConfigError, match=r"'What is 1\+2' has .*model=NAME"):
        rlobj.train("grpo", data=[{"prompt": "What is 1+2", "answer": "3"}], out="run")
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"model": torch.nn.Linear(1, 1)}, "model is a Linear object: pass its tokenizer"),
        ({"model": "embedded", "tokenizer": object()}, "tokenizer= is for a model object"),
        ({"data": {"prompt": "1"}}, "row 1: expected a mapping"),
        ({"data": "additon"}, "'additon' is no file and no other source. Did you mean 'addition'?"),
        ({"data": "gsmk8"}, "Did you mean 'gsm8k'?"),
        ({"data": "mine.jsonl"}, "there is no file 'mine.jsonl'"),
        ({"data": "owner/a"}, "data.source: 'owner/a' needs a model"),
        ({"data": ["1+1="]}, "'1+1=' is no file and no other source"),
        ({"data": ["owner/a", "owner/b"]}, "data.source: 'owner/a, owner/b' needs a model"),
        ({"data": [{"answer": "1"}]}, "row 1"),
        ({"reward": "exct"}, "Did you mean 'exact'"),
        ({"tools": " calculator, python,"}, "the embedded policy has no chat template"),
        ({"sampler": "transfomers"}, "Did you mean 'transformers'"),
        ({"config": "nowhere.yaml"}, "config=nowhere.yaml is not there"),
        ({"model": "./nowhere", "data": "addition"}, "no run or model folder './nowhere'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_argument_is_named_with_what_was_expected(arguments, expected):
    with pytest.raises((ConfigError, DataError)) as caught:
        rlobj.train("stapo", out="run", **arguments)
    assert expected in str(caught.value)
    assert not Path("run").exists()


def test_two_runs_of_one_second_have_their_own_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = []
    for _ in range(20):  # some of them in the same second
        folders.append(new_folder(compose("stapo")))
        folders[-1].mkdir(parents=True)
    assert len(set(folders)) == 20


# Several processes.


def test_objects_are_refused_with_several_processes(loaded, monkeypatch):
    model, tokenizer = loaded
    with pytest.raises(ConfigError, match=r"passed as model, reward\. Start .* torchrun"):
        rlobj.train(
            "stapo", model=model, tokenizer=tokenizer, data="addition", reward=local_reward(),
            processes=2,
        )  # fmt: skip
    monkeypatch.setattr("rlobj.models.checking.check_model", lambda config: None)
    settings, given = {"model.name": "owner/model"}, ["calculator", local_reward()]
    with pytest.raises(ConfigError, match=r"passed as tools\. Start .* torchrun"):
        rlobj.train("stapo", data="addition", tools=given, settings=settings, processes=2)
    assert CallerInputs(tools=["calculator"]).local() == []
    with pytest.raises(ConfigError, match=r"passed as callbacks\. Start .* torchrun"):
        rlobj.train("stapo", processes=2, callbacks=[Callback()])


TORCHRUN = """
import os
import sys
import torch
import rlobj
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])

def reward(response, answer, **columns):
    return float(response.strip() == answer)

result = rlobj.train(
    "grpo", model=model, tokenizer=tokenizer, data="max-digits", reward=reward,
    out="two" if os.environ["RANK"] == "0" else "of another clock",
    settings={"training.steps": 2, "sampling.max_tokens": 2, "sampling.prompts_per_step": 4},
)
assert result.model is model
assert (result.path / "metrics.jsonl").is_file(), result.path
"""


@pytest.mark.slow
def test_objects_are_trained_in_the_processes_of_torchrun(policy):
    """All ranks use the folder of the first: by default each names it after its own clock."""
    settings = {"training.steps": 2, "sampling.max_tokens": 2, "sampling.prompts_per_step": 4}
    names = {"data": "max-digits", "reward": "exact"}
    rlobj.train("grpo", model=policy, **names, out="one", settings=settings)
    Path("script.py").write_text(TORCHRUN)
    run_ranks(["script.py", policy])
    one, two = ([line.get("reward/mean") for line in metrics(Path(run))] for run in ("one", "two"))
    assert one == pytest.approx(two)
    assert not Path("of another clock").exists()
    assert read_run_config(Path("two")).model.name == "<Python object Qwen3ForCausalLM>"
