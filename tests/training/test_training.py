"""Training: it learns, it is exact, and what it leaves on disk continues to the bit."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
from importlib import metadata
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from runs import distance, open_trainer, same, weights
from safetensors.torch import load_file
from tiny import WITHOUT_SCORES, tiny_config

from rlobj.answers import verifier_version
from rlobj.base.errors import ConfigError, RunError
from rlobj.data import load_problems
from rlobj.models.loading import load_model
from rlobj.ranks import ProcessGroup
from rlobj.rewards.kinds import Graded
from rlobj.runs.configuration import dump_config, read_run_config
from rlobj.runs.run_folder import RunFolder
from rlobj.samplers import Response
from rlobj.settings.presets import load_preset, preset_names
from rlobj.settings.run_config import ModelConfig
from rlobj.settings.training import TrainingConfig, learning_rate
from rlobj.training import Callback, CallerInputs, run_training
from rlobj.training.loop.step import run_step


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted({*preset_names()} - {*WITHOUT_SCORES}))
def test_presets_with_scores_train(policy, tmp_path, preset):
    """tests/training/test_step_forwards.py trains the others."""
    asked = load_preset(preset).config.get("scores", {})
    required = {"model": str(policy)}
    readable = {"prompt": "{{ prompt }}{{ answer }},"}  # the tiny policy knows no letters
    scores = {name: required if asked[name] == "required" else readable for name in asked}
    scores |= {name: {} for name, entry in asked.items() if "value" in entry}  # as it is
    settings = {"training": {"steps": 2, "updates_per_step": 2}, "scores": scores}
    config = tiny_config(policy, preset, **settings)
    history = run_training(config, tmp_path / "run").history
    assert [line["step"] for line in history] == [1, 2]
    assert all(math.isfinite(line["loss/total"]) for line in history)


@pytest.mark.slow
def test_micro_batches_change_memory_and_nothing_else(policy, tmp_path):
    sections = {"sampling": {"max_tokens": 3}, "training": {"steps": 3, "updates_per_step": 2}}
    runs = []
    for tokens in (100_000, 97):
        sections["training"]["micro_batch_tokens"] = tokens
        run_training(tiny_config(policy, "stare-c2", **sections), tmp_path / str(tokens))
        runs.append(weights(tmp_path / str(tokens)))
    for name, value in runs[0].items():
        torch.testing.assert_close(runs[1][name], value, rtol=2e-4, atol=2e-6)


def test_a_shared_forward_equals_a_scoring_pass(policy, tmp_path):
    """One update in one micro-batch: plan and loss read one forward; else two make the same."""
    for shared in (True, False):
        config = tiny_config(policy, "stapo", training={"steps": 3, "skip_inactive": False})
        with open_trainer(config, tmp_path / str(shared)) as trainer:
            trainer.learner._one_update = shared
            for _ in range(3):
                run_step(trainer)
                assert trainer.metrics["train/grad_norm"] > 0
                assert trainer.metrics["sampler/kl"] < 1e-8
            trainer.save(now=True)
    for name, value in weights(tmp_path / "True").items():
        torch.testing.assert_close(weights(tmp_path / "False")[name], value, rtol=1e-5, atol=1e-7)


def test_later_updates_select_with_the_current_policy_unless_told_otherwise(policy, tmp_path):
    seen = {}
    for selection in ("current", "old"):
        training = {"steps": 1, "updates_per_step": 4, "selection": selection}
        config = tiny_config(policy, "20-entropy", training=training)
        with open_trainer(config, tmp_path / selection) as trainer:
            forwards = []
            original = trainer.learner.forward.columns
            trainer.learner.forward.columns = lambda *a, f=forwards, o=original, **k: (
                f.append(1) or o(*a, **k)
            )
            run_step(trainer)
            seen[selection] = len(forwards)
    assert seen == {"current": 4, "old": 1}  # one scoring pass, and one for each later update


def test_dynamic_sampling_refills_and_the_metrics_are_of_all_that_was_sampled(policy, tmp_path):
    config = tiny_config(policy, "dapo", training={"steps": 1})
    with open_trainer(config, tmp_path / "run") as trainer:
        rollout = trainer.pipeline.take(0)
        trainer.pipeline.take = lambda _: rollout
        run_step(trainer)
        [line] = trainer.run.lines()
    groups: dict[int, set] = {}
    for response in rollout.responses:
        groups.setdefault(response.group, set()).add(response.grade.correct)
    assert rollout.batches > 1
    assert rollout.dead
    assert len(groups) <= config.sampling.prompts_per_step
    assert all(verdicts == {True, False} for verdicts in groups.values())
    samples = parquet.read_table(tmp_path / "run/samples/step-000001.parquet").to_pydict()
    assert line["response/count"] == len(samples["id"]) > sum(samples["kept"])
    accuracy = sum(samples["correct"]) / len(samples["correct"])
    assert line["reward/accuracy"] == pytest.approx(accuracy)


def test_an_undecided_response_is_counted_and_trains_nothing(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rlobj.rewards.kinds._exact", lambda *_: Graded(math.nan, None, "timeout", None)
    )
    config = tiny_config(policy, "stapo", training={"steps": 1})
    [line] = run_training(config, tmp_path / "run").history
    assert line["reward/undecided"] == line["response/count"] == 256
    assert line["reward/mean"] is None
    assert line["train/skipped_updates"] == 1
    assert same(weights(tmp_path / "run"), load_file(policy / "model.safetensors"))


def test_steps_without_an_update_stop_the_run_with_the_reason(policy, tmp_path, monkeypatch):
    """A reward that calls everything correct leaves accuracy-based dynamic sampling nothing."""
    monkeypatch.setattr("rlobj.rewards.kinds._exact", lambda *_: Graded(1.0, True, "yes", None))
    dynamic = {"by": "accuracy", "max_batches": 2}
    training = {"steps": 9, "max_skipped": 3}
    config = tiny_config(policy, "dapo", sampling={"dynamic": dynamic}, training=training)
    with pytest.raises(RunError, match=r"3 steps in a row without an update.*64 without signal"):
        run_training(config, tmp_path / "run")


@pytest.mark.parametrize(("configured", "limit"), [(None, 127), (512, 127), (100, 100)])
def test_a_prompt_that_does_not_fit_is_left_out_before_the_first_step(
    configured, limit, policy, tmp_path, caplog
):
    rows = [{"prompt": f"{a},{b}=", "answer": str(max(a, b))} for a in range(6) for b in range(6)]
    rows.append({"prompt": "1" * 200 + "=", "answer": "1"})
    file = tmp_path / "problems.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    data = {"source": str(file), "template": "{prompt}", "max_prompt_tokens": configured}
    config = tiny_config(policy, data=data, training={"steps": 1})
    run_training(config, tmp_path / "run")
    assert f"left out 1 training problems: prompts over {limit} tokens" in caplog.text


def test_a_second_process_in_the_same_folder_is_refused(policy, tmp_path):
    config = tiny_config(policy, training={"steps": 1})
    busy, refused = tmp_path / "run", pytest.raises(ConfigError, match="another process")
    with open_trainer(config, busy), refused:
        run_training(config, busy, resume=True)


def test_gradient_checkpointing_recomputes_and_changes_nothing(policy, tmp_path):
    forwards = []
    for on in (False, True):
        training = {"steps": 2, "gradient_checkpointing": on, "shared_prompts": False}
        with open_trainer(tiny_config(policy, training=training), tmp_path / str(on)) as trainer:
            calls = []
            layer = trainer.policy.model.model.layers[0].mlp
            layer.register_forward_pre_hook(lambda *_, c=calls: c.append(1))
            for _ in range(2):
                run_step(trainer)
            forwards.append(len(calls))
    assert forwards[1] > forwards[0]
    assert same(weights(tmp_path / "True"), weights(tmp_path / "False"))


def test_bfloat16_is_the_arithmetic_of_sampler_and_trainer_alike(policy, tmp_path):
    config = tiny_config(policy, training={"steps": 2}, sampling={"max_tokens": 3})
    half = config.model.model_copy(update={"dtype": "bfloat16"})
    config = config.model_copy(update={"model": half})
    history = run_training(config, tmp_path / "run").history
    assert 0 < history[-1]["sampler/ratio_max"] < 1.2
    stored = weights(tmp_path / "run")
    assert all(value.dtype == torch.float32 for value in stored.values())


@pytest.mark.parametrize("mismatch", [None, {"kind": "truncate"}])
def test_unknown_log_probs_of_the_sampler_are_counted(policy, tmp_path, monkeypatch, mismatch):
    """With a mismatch there is a scoring pass; without one the update is the first to score."""
    made = itertools.count()

    def half_unknown(logprobs, **fields):
        unknown = [math.nan] if next(made) % 2 else []
        return Response(logprobs=unknown + list(logprobs)[len(unknown) :], **fields)

    monkeypatch.setattr("rlobj.samplers.transformers.Response", half_unknown)
    config = tiny_config(policy, "grpo", objective={"mismatch": mismatch}, training={"steps": 1})
    [line] = run_training(config, tmp_path / "run").history
    assert line["sampler/nan_tokens"] == line["response/count"] / 2 == 128
    assert line["train/skipped_updates"] == 0
    assert line["sampler/logprob_gap"] < 1e-4
    assert not same(weights(tmp_path / "run"), load_file(policy / "model.safetensors"))


def test_each_session_names_the_version_of_the_verifier(policy, tmp_path):
    config = tiny_config(policy, training={"steps": 1}, checkpoint={"every": 1})
    run_training(config, tmp_path / "run")
    with pytest.raises(ConfigError, match="rlobj resume"):  # the folder is not overwritten
        run_training(config, tmp_path / "run")
    longer = config.model_copy(update={"training": config.training.model_copy(update={"steps": 2})})
    run_training(longer, tmp_path / "run", resume=True)
    lines = (tmp_path / "run" / "sessions.jsonl").read_text().splitlines()
    sessions = [json.loads(line) for line in lines]
    assert [(each["step"], each["verifier"]) for each in sessions] == [
        (0, verifier_version()),
        (1, verifier_version()),
    ]
    assert sessions[0]["versions"]["torch"] == metadata.version("torch")


def test_a_configuration_is_read_back_as_it_was_written(policy, tmp_path):
    for preset in WITHOUT_SCORES:
        config = tiny_config(policy, preset)
        run = tmp_path / preset
        run.mkdir()
        (run / "config.resolved.yaml").write_text(dump_config(config))
        assert read_run_config(run) == config


@pytest.mark.parametrize(
    ("schedule", "expected"), [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5)]
)
def test_schedules_at_half_way(schedule, expected):
    config = TrainingConfig(steps=12, warmup_steps=2, learning_rate=1.0, schedule=schedule)
    assert [learning_rate(config, step) for step in (0, 1)] == [0.5, 1.0]
    assert learning_rate(config, 7) == pytest.approx(expected)
    low = config.model_copy(update={"warmup_ratio": 0.12, "min_lr_ratio": 0.2})
    assert [learning_rate(low, step) for step in (0, 1)] == [0.5, 1.0]  # 1.44 steps are two
    assert learning_rate(low, 7) == pytest.approx(0.2 + 0.8 * expected)
    assert learning_rate(low, 12) == pytest.approx(1.0 if schedule == "constant" else 0.2)


def test_a_fused_adamw_with_its_epsilon_resumes_to_the_bit(policy, tmp_path):
    def run(name: str, **training: Any) -> dict[str, torch.Tensor]:
        settings = {"steps": 4, "schedule": "cosine", "min_lr_ratio": 0.5, "warmup_ratio": 0.3}
        config = tiny_config(policy, training={**settings, **training})
        run_training(config, tmp_path / name)
        return weights(tmp_path / name)

    fused = run("fused", fused=True)
    assert distance(run("plain"), fused) < 1e-6
    assert distance(run("epsilon", adam_epsilon=1e-2), fused) > 1e-4
    run("cut", fused=True, steps=2, schedule="constant", warmup_ratio=0.6)
    edit = RunFolder(tmp_path / "cut")
    edit.write_config(read_run_config(tmp_path / "fused"))
    run_training(read_run_config(tmp_path / "cut"), tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "cut"), fused)


def test_callbacks_receive_every_step_and_ranks_send_no_held_out_text(
    policy, tmp_path, monkeypatch
):
    @dataclasses.dataclass
    class Listener(Callback):
        heard: list = dataclasses.field(default_factory=list)

        def started(self, facts):
            self.heard.append(facts["checks"])

        def stepped(self, step, metrics):
            self.heard.append(step)

        def evaluated(self, step, evaluation):
            self.heard.append(("eval", step))

    listener, sent = Listener(), []
    gather = ProcessGroup.gather
    monkeypatch.setattr(ProcessGroup, "gather", lambda *it: sent.append(it[1]) or gather(*it))
    config = tiny_config(policy, training={"steps": 2}, evaluation={"every": 1, "samples": 1})
    run_training(config, tmp_path / "run", CallerInputs(callbacks=[listener]))
    checks, *events = listener.heard
    assert checks.endswith("; samples compared with the policy in every step")
    assert events == [("eval", 0), ("eval", 1), 1, ("eval", 2), 2]
    [held_out] = {len(value) for value in sent if "GradedProblem(" in str(value)}
    prompts = [problem.prompt for problem in load_problems(config.data, "test")[:held_out]]
    assert prompts
    assert not [prompt for prompt in prompts if prompt in str(sent)]


def test_no_module_drops_anything_in_training(policy, tmp_path):
    """Nor does attention, which is given its rate by a module."""
    folder = tmp_path / "policy"
    shutil.copytree(policy, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "attention_dropout": 0.5}))
    model = load_model(ModelConfig(name=str(folder)), str(folder)).train()
    ids = torch.arange(10)[None] % 7
    assert torch.equal(model(ids).logits, model(ids).logits)
    assert model.config.attention_dropout == 0.5  # a checkpoint says what it said


def test_max_tokens_that_leave_no_room_for_a_prompt_are_refused(policy, tmp_path):
    config = tiny_config(policy, sampling={"max_tokens": 1024})
    message = r"sampling\.max_tokens=1024 leaves no room .* context is 128 tokens"
    with pytest.raises(ConfigError, match=message):
        run_training(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
