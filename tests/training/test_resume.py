"""rlobj.resume and rlobj.train(from_run=...): what continues, what is refused, what is recorded."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from runs import (
    QUICK,
    ROWS,
    ROWS_TEMPLATE,
    local_reward,
    metrics,
    same,
    steps,
    weights,
)
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import rlobj
from rlobj.base.errors import ConfigError, DataError, RunError
from rlobj.runs.configuration import read_changes, read_run_config
from rlobj.samplers import TransformersSampler
from rlobj.settings.building import compose
from rlobj_cli.app import app


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def loaded(policy):
    """A model object and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(policy)


# Resuming.


def test_resume_continues_a_run_under_its_own_configuration(policy):
    names = {"model": policy, "data": "max-digits", "reward": "exact"}
    rlobj.train("stapo", **names, out="whole", settings={**QUICK, "training.steps": 4})
    rlobj.train("stapo", **names, out="cut", settings=QUICK)
    result = rlobj.resume("cut", settings={"training.steps": 4})
    assert steps(result.path) == [1, 2, 3, 4]
    assert metrics(Path("cut")) == metrics(Path("whole"))
    assert same(weights(Path("cut")), weights(Path("whole")))
    again = rlobj.resume("cut")
    assert (again.steps, again.history) == (4, result.history)


def test_resume_refuses_what_would_change_results(policy):
    rlobj.train("stapo", model=policy, data="max-digits", out="run", settings=QUICK)
    with pytest.raises(ConfigError, match=r"Leave out: settings training\.weight_decay"):
        rlobj.resume("run", settings={"training.weight_decay": 1.0, "training.steps": 4})
    with pytest.raises(ConfigError, match=r"training\.steps=1: run has done 2 steps"):
        rlobj.resume("run", settings={"training.steps": 1})
    with pytest.raises(ConfigError, match="nowhere is not a run"):
        rlobj.resume("nowhere")


def test_the_key_goes_to_a_server_that_a_run_names_only_if_the_caller_names_it(policy):
    """The server of the run is far away; the one that is named instead is not there."""
    server = {"sampling.server.url": "http://127.0.0.1:9"}
    longer, near = {"training.steps": 3}, {"sampling.server.patience": 0.0, **server}
    rlobj.train("grpo", model=policy, data="max-digits", out="run", settings=QUICK)
    shared = Path("run/config.resolved.yaml")
    shared.write_text(shared.read_text().replace("127.0.0.1:8000", "far.example"))
    starts = (
        lambda **words: rlobj.resume("run", sampler="vllm-server", **words),
        lambda **words: rlobj.train(from_run="run", sampler="vllm-server", **words),
        lambda **words: rlobj.evaluate("run", n=1, sampler="vllm-server", **words),
    )
    for start, settings in zip(starts, (longer, longer, {}), strict=True):
        with pytest.raises(ConfigError, match=r"another machine: http://far\.example"):
            start(settings=settings)
        with pytest.raises(RunError, match=r"127\.0\.0\.1:9"):
            start(settings={**settings, **near})


def test_a_change_on_resume_is_recorded_and_a_dead_engine_replaced(policy, loaded):
    settings = {**QUICK, "sampling.engine": "object", "training.warmup_steps": 0}
    given = {"data": "max-digits", "reward": "exact", "settings": settings}
    sampler = TransformersSampler(*loaded, own_copy=True)
    rlobj.train("stapo", model=policy, sampler=sampler, **given, out="run")
    with pytest.raises(ConfigError, match=r"Pass them again: .*sampler=\.\.\."):
        rlobj.resume("run", settings={"training.steps": 3})
    words = ["--sampler", "transformers", "--set", "training.learning_rate=5e-4"]
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    shown = runner.invoke(app, ["resume", "run", *words, "--set", "training.steps=3"])
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


def test_a_run_of_objects_needs_them_again(loaded, policy):
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
    with pytest.raises(ConfigError, match=r"from Python objects\. .* again: data=\.\.\., reward="):
        rlobj.train(from_run="run")
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


def test_a_model_object_resumes_and_keeps_its_reference(loaded):
    """The KL term needs the weights before training, the resumed run those of the checkpoint."""
    model, tokenizer = loaded
    settings = {**QUICK, "objective.penalties": [{"kind": "kl", "coefficient": 0.1}]}
    for name, count in (("whole", 4), ("cut", 2)):
        given = {"model": copy.deepcopy(model), "tokenizer": tokenizer, "data": "max-digits"}
        rlobj.train("stapo", **given, out=name, settings={**settings, "training.steps": count})
    rlobj.resume("cut", model=model, tokenizer=tokenizer, settings={"training.steps": 4})
    assert metrics(Path("cut")) == metrics(Path("whole"))
    assert same(weights(Path("cut")), weights(Path("whole")))


# Starting from another run.


def test_a_new_run_starts_from_the_policy_of_a_checkpoint(policy):
    names = {"model": policy, "data": "max-digits", "reward": "exact"}
    settings = {**QUICK, "checkpoint.every": 1, "training.warmup_steps": 0}
    rlobj.train("stapo", **names, out="old", settings={**settings, "training.steps": 3})
    with pytest.raises(ConfigError, match=r"no checkpoint 1 .*it has 2, 3, newest"):
        rlobj.train(from_run="old@1")
    with pytest.raises(ConfigError, match=r"from_run=old and the model .* both name a policy"):
        rlobj.train(from_run="old", model=policy)
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    words = ["train", "--from", "old@2", "--set", "training.learning_rate=5e-4", "--out", "new"]
    shown = runner.invoke(app, [*words, "--set", "training.steps=1", "--preset", "grpo"])
    assert shown.exit_code == 0, shown.output
    config = read_run_config(Path("new"))
    assert config.origin == f"{Path('old').absolute()}@2"
    assert (config.preset, config.training.learning_rate) == ("grpo", 5e-4)
    assert config.objective == compose("grpo").objective
    assert config.sampling == read_run_config(Path("old")).sampling
    started = load_file("old/checkpoints/step-000002/model/model.safetensors")
    assert same(load_file("new/initial/model.safetensors"), started)
    assert not same(weights(Path("new")), started)
    shutil.rmtree("old")  # the new run needs nothing of it
    result = rlobj.resume("new", settings={"training.steps": 2})
    assert steps(result.path) == [1, 2]
    assert "changed" not in Path("new/sessions.jsonl").read_text()


def write_problems(name: str, shift: int = 0, column: int = 0, words: str = "") -> None:
    """Sums of which some answers, columns or prompts may be edited."""
    rows = [
        {"id": str(i), "prompt": f"{i % 5}+{i // 5}={words}", "answer": str(i + shift), "c": column}
        for i in range(20)
    ]
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        ({}, []),
        ({"train.jsonl": {"shift": 1}}, ["the training problems"]),
        ({"test.jsonl": {"column": 1}}, ["the held-out problems"]),
        (
            {name: {"words": "?"} for name in ("train.jsonl", "test.jsonl")},
            ["the training problems", "the held-out problems"],
        ),
    ],
    ids=["none", "an answer", "a column", "prompts"],
)
def test_an_edit_of_problems_is_recorded(policy, edit, changed):
    for name in ("train.jsonl", "test.jsonl"):
        write_problems(name)
    settings = {**QUICK, "training.steps": 1, "checkpoint.every": 1, "evaluation.every": 1}
    settings["data.test"] = "test.jsonl"
    names = {"model": policy, "data": "train.jsonl", "reward": "exact"}
    rlobj.train("grpo", **names, out="run", settings=settings)
    for name, edited in edit.items():
        write_problems(name, **edited)
    rlobj.resume("run", settings={"training.steps": 2})
    assert [name for _, name, _, _ in read_changes(Path("run"))] == changed
    rlobj.resume("run", settings={"training.steps": 3})
    assert [name for _, name, _, _ in read_changes(Path("run"))] == changed


def test_an_edit_of_an_objectives_file_is_recorded():
    code = "from rlobj.objectives.surrogates import Surrogate\n\n\nclass Mine(Surrogate):\n"
    code += (
        "    def __call__(self, terms):\n        return {} * terms.token_ratio * terms.advantages\n"
    )
    Path("mine.py").write_text(code.format(1))
    objective = {"surrogate": {"kind": "custom", "target": "mine.py:Mine"}}
    settings = {**QUICK, "training.steps": 1, "checkpoint.every": 1, "objective": objective}
    rlobj.train("grpo", data="max-digits", out="run", settings=settings)
    Path("mine.py").write_text(code.format(2))
    rlobj.resume("run", settings={"training.steps": 2}, trust=True)
    assert [name for _, name, _, _ in read_changes(Path("run"))] == ["the file of an objective"]


def test_the_best_checkpoint_after_an_edit_of_the_reward_is_one_of_the_new_reward():
    """A reward in other units does not compare; the checkpoint of step 1 has the highest number."""
    once = {"training.steps": 1, "checkpoint.every": 1}
    settings = {**QUICK, **once, "evaluation.every": 1, "evaluation.samples": 1}
    reward = "mine.py:score"
    Path("mine.py").write_text("def score(*_, **__): return 9\n")
    rlobj.train("grpo", data="max-digits", reward=reward, out="run", settings=settings)
    Path("mine.py").write_text("def score(*_, **__): return 8.25\n")
    result = rlobj.resume("run", settings={"training.steps": 2}, trust=True)
    assert [line["eval/reward"] for line in result.history] == [9, 9, 8.25]
    assert result.best_checkpoint is not None
    assert result.best_checkpoint.name == "step-000002"
    assert [name for _, name, _, _ in read_changes(Path("run"))] == ["the file of a reward"]
