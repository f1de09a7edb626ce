"""Runs whose objective reads scores: a teacher from a run, averages of the policy, hints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from runs import (
    ROWS,
    ROWS_TEMPLATE,
    make_steps,
    metrics,
    open_trainer,
    ranks,
    same,
    weights,
    write_config,
)
from safetensors.torch import load_file, save_file
from tiny import save_tiny_policy, tiny_config

import rlobj
from rlobj import ConfigError, DataError, RunError
from rlobj.base.yaml import dump_yaml, load_yaml
from rlobj.runs.checkpoints import checkpoints, write_manifest
from rlobj.runs.configuration import read_run_config
from rlobj.runs.tables import read_tables
from rlobj.scoring import PolicyScorer, TokenScores, score_samples
from rlobj.training import run_training
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.step import run_step
from rlobj.training.new_run import prepared

GAP = {"shape": "advantage + 0.3 * clip(teacher_gap, -5, 5)"}
LAGS = {
    "scores": {"slow": {"model": "policy", "ema": 0.8}, "lag": {"model": "policy", "every": 2}},
    "objective": {"shape": "advantage + 0.2 * slow_gap + 0.1 * lag_gap"},
}
SHORT = {"sampling.engine": "transformers", "sampling.max_tokens": 3}
STEPS = {
    "training": {"steps": 4, "updates_per_step": 2, "learning_rate": 5e-3},
    "checkpoint": {"every": 1, "keep": 9, "best": False},
    "output": {"tables_every": 1},
}


@pytest.fixture(scope="module")
def teacher(policy, tmp_path_factory) -> Path:
    """A run of six steps."""
    run = tmp_path_factory.mktemp("teacher") / "run"
    training = {"steps": 6, "learning_rate": 5e-3}
    run_training(tiny_config(policy, "grpo", training=training), run)
    return run


def config_of(policy: Path, scores: dict[str, Any], **sections: Any) -> Any:
    merged = {**STEPS, **sections}
    return prepared(tiny_config(policy, "dapo-loss", scores=scores, **merged))


def direct(model: Any, sequences: Any, **settings: Any) -> Any:
    model = model.eval()
    with torch.no_grad():
        return score_samples(PolicyScorer(model), sequences, **settings)


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_a_teachers_columns_are_those_of_its_model(policy, teacher, tmp_path):
    shape = "advantage + 0.3 * clip(teacher_gap, -5, 5) + 0.01 * teacher_entropy"
    scores = {"teacher": {"run": str(teacher), "dtype": "float32"}}
    config = config_of(policy, scores, objective={"shape": shape})
    assert config.scores["teacher"].checkpoint == "6"
    run_training(config, tmp_path / "run")
    model = load(checkpoints(teacher)[-1] / "model")
    for update in read_tables(tmp_path / "run", [1, 4]):
        found = direct(model, update.sequences, entropy=True)
        table = update.table
        torch.testing.assert_close(table.columns["teacher_logprob"], found.logprobs)
        torch.testing.assert_close(table.columns["teacher_entropy"], found.entropy)
    lines = metrics(tmp_path / "run")
    assert lines[0]["score/teacher/gap"] != 0
    assert lines[0]["train/grad_norm"] > 0


def test_averages_and_copies_follow_the_policy_at_the_end_of_each_step(policy, tmp_path):
    run = tmp_path / "run"
    run_training(tiny_config(policy, "dapo-loss", **STEPS, **LAGS), run)
    trained = [load_file(next((each / "model").glob("*.safetensors"))) for each in checkpoints(run)]
    slow = load_file(policy / "model.safetensors")
    for number, (folder, own) in enumerate(zip(checkpoints(run), trained, strict=True), 1):
        slow = {name: 0.8 * value + 0.2 * own[name] for name, value in slow.items()}
        kept = {
            name: load_file(folder / "scores" / name / "weights.safetensors")
            for name in ("slow", "lag")
        }
        assert kept["slow"].keys() == kept["lag"].keys() <= own.keys()
        for name, value in kept["slow"].items():
            torch.testing.assert_close(value, slow[name])
        copied = number // 2 * 2
        source = trained[copied - 1] if copied else load_file(policy / "model.safetensors")
        assert all(torch.equal(value, source[name]) for name, value in kept["lag"].items())
    gaps = [line["score/slow/gap"] for line in metrics(run)]
    assert gaps[0] == pytest.approx(0, abs=1e-6)
    assert gaps[-1] < 0  # the average is less sure of the policy's own tokens


def test_a_resumed_run_has_the_same_averages(policy, tmp_path):
    config = tiny_config(policy, "dapo-loss", **STEPS, **LAGS)
    run_training(config, tmp_path / "whole")
    make_steps(config, tmp_path / "cut", 2)
    run_training(config, tmp_path / "cut", resume=True)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero3", "fsdp2"])
def test_scores_in_shards_are_those_of_one_process_also_after_a_change_of_ranks(
    policy, teacher, tmp_path, strategy
):
    """A teacher in shards and averages of shards, on two ranks and resumed on three."""
    scores = {**LAGS["scores"], "teacher": {"run": str(teacher)}}
    objective = {"shape": f"{LAGS['objective']['shape']} + 0.1 * teacher_gap"}
    config = config_of(policy, scores, objective=objective)
    run_training(config, tmp_path / "one")
    file = write_config(config, tmp_path / "config.yaml")
    words = ["train", "--config", file, "--model", policy, "--strategy", strategy]
    short = [*words, "--out", tmp_path / "two", "--set", "training.steps=2"]
    ranks(short, 2)
    ranks(["resume", tmp_path / "two", "--set", "training.steps=4"], 3)
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    for before, after in zip(one, two, strict=True):
        for name in ("score/slow/gap", "score/lag/gap", "score/teacher/gap", "loss/policy"):
            assert after[name] == pytest.approx(before[name], abs=2e-5), name


@pytest.mark.parametrize("prompt", ["{{ prompt }}{{ answer }},", "file"])
def test_a_score_may_see_another_prompt(policy, tmp_path, prompt):
    if prompt == "file":
        (tmp_path / "hint.j2").write_text("{{ prompt }}{{ answer }},")
        prompt = str(tmp_path / "hint.j2")
    hinted = {"hinted": {"model": "policy", "prompt": prompt}}
    objective = {"shape": "advantage + 0.1 * hinted_gap"}
    training = {"steps": 1, "learning_rate": 1e-9}
    config = config_of(policy, hinted, objective=objective, training=training)
    assert config.scores["hinted"].prompt == "{{ prompt }}{{ answer }},"
    run_training(config, tmp_path / "run")
    tokenizer = build_tokenizer()
    [update] = read_tables(tmp_path / "run", [1])
    answers = [str(max(map(int, tokenizer.decode(p)[:-1].split(",")))) for p, _ in update.sequences]
    sequences = [
        (tokenizer.encode(f"{tokenizer.decode(p)}{answer},"), tokens)
        for (p, tokens), answer in zip(update.sequences, answers, strict=True)
    ]
    found = direct(load(policy), sequences).logprobs
    torch.testing.assert_close(update.table.columns["hinted_logprob"], found, rtol=1e-4, atol=1e-4)


def test_a_prompt_may_have_the_feedback_of_the_reward(policy, tmp_path):
    def graded(response: str, answer: str, **columns: Any) -> dict[str, Any]:
        return {"reward": len(response), "correct": False, "feedback": f"{len(response)},"}

    hinted = {"hinted": {"model": "policy", "prompt": "{{ prompt }}{{ feedback }}{{ more }},"}}
    objective = {"shape": "advantage + 0.1 * hinted_gap"}
    rows = [{**row, "more": str(number)} for number, row in enumerate(ROWS)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"source": str(file), "template": "{prompt}"}
    config = config_of(
        policy, hinted, objective=objective, data=data, **{"rewards": {"kind": "exact"}}
    )
    inputs = CallerInputs(reward=graded)
    with open_trainer(config, tmp_path / "run", inputs) as trainer:
        rollout = trainer.collect()
        for each in rollout.responses:
            text = trainer.policy.tokenizer.decode(each.score_prompts["hinted"])
            row = next(row for row in rows if row["prompt"] == each.problem.prompt)
            assert text == f"{row['prompt']}{len(each.text)},{row['more']},"


def change(run: Path, what: str) -> None:
    newest = checkpoints(run)[-1]
    if what == "retrained":
        file = newest / "manifest.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "more": [0, 0]}))
    elif what == "exchanged":
        file = next((newest / "model").glob("*.safetensors"))
        save_file({n: x + 1 for n, x in load_file(file).items()}, file)
    else:
        file = next((newest / "model").glob("*.safetensors"))
        save_file({n: x * float("nan") for n, x in load_file(file).items()}, file)
        write_manifest(newest)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("exchanged", "is damaged .*has changed since it was written"),
        ("retrained", "it has changed since"),
        ("nan", r"scores\.teacher: .*logits of .* are not finite"),
    ],
)
def test_a_teacher_that_is_not_what_it_was_is_refused(policy, tmp_path, what, message):
    teacher = tmp_path / "teacher"
    run_training(tiny_config(policy, "grpo", training={"steps": 1}), teacher)
    if what == "nan":
        change(teacher, what)
    config = config_of(policy, {"teacher": {"run": str(teacher)}}, objective=GAP)
    if what != "nan":
        change(teacher, what)
    with pytest.raises(ConfigError, match=message):
        run_training(config, tmp_path / "run")


def edited(folder: Path, what: str) -> None:
    file = folder / "model.safetensors"
    if what == "a weight":
        tensors = load_file(file)
        tensors["model.norm.weight"][3] += 1
        save_file(tensors, file, metadata={"format": "pt"})
    else:
        folder.rename(folder.with_name("gone"))


@pytest.mark.parametrize("what", ["a weight", "the folder"])
def test_a_run_is_resumed_only_with_the_model_of_a_score_that_it_began_with(policy, tmp_path, what):
    other = save_tiny_policy(tmp_path / "other", seed=1)
    config = config_of(policy, {"teacher": {"model": str(other)}}, objective=GAP)
    make_steps(config, tmp_path / "run", 1)
    recorded = read_run_config(tmp_path / "run").scores["teacher"].digest
    assert recorded is not None
    edited(other, what)
    before = metrics(tmp_path / "run")
    reason = "it is not there any more" if what == "the folder" else "it has changed since"
    with pytest.raises(ConfigError, match=rf"scores\.teacher\.model: .*{recorded}: {reason}"):
        run_training(config, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == before
    if what != "the folder":
        again = {"teacher": {"model": str(other), "digest": recorded}}
        with pytest.raises(ConfigError, match=r"in a new run, use (scores\.teacher\.)?digest=null"):
            config_of(policy, again, objective=GAP)
        again["teacher"]["digest"] = None
        assert config_of(policy, again, objective=GAP).scores["teacher"].digest != recorded


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, r"reads the score 'teacher', and nothing names .* scores\.teacher\.run=RUN"),
        ({"teacher": "required"}, r"nothing names its model"),
        ({"teacher": {"run": "nowhere"}}, "nowhere is not a run: there is no such folder"),
        ({"teacher": {"model": "policy", "prompt": "nofile"}}, "which is no file that can be read"),
        ({"teacher": {"model": "policy", "prompt": "{{ hint }}"}}, "'hint' is undefined"),
        ({"teacher": {"model": "policy", "prompt": "{{ prompt"}}, "is no template"),
        (
            {"teacher": {"model": "policy", "prompt": "{{ prompt }}é"}},
            r"scores\.teacher\.prompt has characters that .* does not know: .*é",
        ),
        (
            {"teacher": {"model": "policy", "prompt": "{{ prompt * 40 }}"}},
            "has 160 tokens for .* leaves 125",
        ),
    ],
)
def test_mistakes_are_told_before_the_run(policy, tmp_path, scores, message):
    objective = {**GAP, "scores": ["teacher"]}
    with pytest.raises(ConfigError, match=message):
        rlobj.train(
            "dapo-loss",
            model=str(policy),
            data=ROWS,
            out=tmp_path / "run",
            settings={**SHORT, "objective": objective, "scores": scores, **ROWS_TEMPLATE},
        )
    assert not (tmp_path / "run").exists()


def test_a_teacher_with_another_tokenizer_is_refused_and_one_with_another_end_needs_it(
    policy, tmp_path
):
    other = save_tiny_policy(tmp_path / "other", seed=1)
    file = other / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "eos_token": "5"}))
    config = config_of(policy, {"teacher": {"model": str(other)}}, objective=GAP)
    with pytest.raises(ConfigError, match=r"use scores\.teacher\.end="):
        run_training(config, tmp_path / "run")
    end = build_tokenizer().convert_tokens_to_ids("5")
    scores = {"teacher": {"model": str(other), "end": end, "dtype": "float32"}}
    config = config_of(policy, scores, objective=GAP)
    run_training(config, tmp_path / "run")
    [*updates] = read_tables(tmp_path / "run", [1])
    own = build_tokenizer().eos_token_id
    sequences = [
        (p, [end if t == own else t for t in tokens]) for p, tokens in updates[0].sequences
    ]
    found = direct(load(other), sequences).logprobs
    torch.testing.assert_close(updates[0].table.columns["teacher_logprob"], found)


def test_a_log_prob_that_is_not_finite_ends_the_run_and_is_named(policy, teacher, tmp_path):
    config = config_of(policy, {"teacher": {"run": str(teacher)}}, objective=GAP)
    with open_trainer(config, tmp_path / "run") as trainer:
        score: Any = trainer.learner.scores.all["teacher"]
        frozen = score.scorer

        def broken(*inputs: Any, **settings: Any) -> TokenScores:
            found = frozen(*inputs, **settings)
            found.logprobs[1] = float("nan")
            return found

        score.scorer = broken
        with pytest.raises(RunError, match=r"scores\.teacher: 1 of its values .* step 1\."):
            run_step(trainer)


def test_problems_without_answers_are_enough_for_a_teacher_alone(policy, teacher, tmp_path):
    rows = [{"prompt": row["prompt"]} for row in ROWS]
    settings = {**SHORT, **ROWS_TEMPLATE, "training.steps": 1, "scores.teacher.run": str(teacher)}
    given: dict[str, Any] = {"model": str(policy), "data": rows, "out": tmp_path / "run"}
    with pytest.raises(DataError, match="found no answer"):
        rlobj.train("dapo-loss", settings={**settings, "objective.shape": GAP["shape"]}, **given)
    settings["objective.shape"] = "teacher_gap"
    line = rlobj.train("dapo-loss", settings=settings, **given).history[-1]
    assert line["reward/undecided_share"] == 1
    assert line["train/grad_norm"] > 0
    assert not line["diagnosis/findings"]


def test_a_run_from_another_takes_another_teacher_and_reads_no_file_that_it_names(
    policy, teacher, tmp_path
):
    config = config_of(
        policy, {"teacher": {"run": str(teacher)}}, objective=GAP, training={"steps": 1}
    )
    run_training(config, tmp_path / "first")
    settings = {"training.steps": 1, "scores.teacher.model": str(policy)}
    rlobj.train(from_run=tmp_path / "first", settings=settings, out=tmp_path / "second")
    assert metrics(tmp_path / "second")[-1]["score/teacher/gap"] != 0
    stranger = tmp_path / "first" / "config.resolved.yaml"
    own = load_yaml(stranger.read_text())
    own["scores"]["teacher"]["prompt"] = str(tmp_path / "secret")
    (tmp_path / "secret").write_text("{{ secret }}")
    stranger.write_text(dump_yaml(own))
    with pytest.raises(ConfigError, match="prompt is no template"):
        rlobj.train(from_run=tmp_path / "first", settings=settings, out=tmp_path / "third")
