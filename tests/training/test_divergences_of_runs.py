"""Runs whose objective reads a teacher's distribution over the vocabulary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from runs import metrics, open_trainer, ranks, write_config
from safetensors.torch import load_file, save_file
from tiny import save_tiny_policy, tiny_config
from torch import Tensor

import rlobj
from rlobj import ConfigError
from rlobj.objectives.functional import divergence
from rlobj.runs.tables import read_tables
from rlobj.training import run_training
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.step import run_step
from rlobj.training.new_run import prepared

JSD = {"kind": "divergence", "against": "teacher", "of": "jsd", "beta": 0.3}
MIXED = {"kind": "divergence", "against": "teacher", "of": "mixed", "top": 5}
STEPS = {
    "training": {"steps": 2, "updates_per_step": 2, "learning_rate": 5e-3},
    "output": {"tables_every": 1},
    "checkpoint": {"best": False},
}


@pytest.fixture(scope="module")
def teacher(policy, tmp_path_factory) -> Path:
    """The policy with other weights."""
    folder = tmp_path_factory.mktemp("teacher")
    save_tiny_policy(folder)
    file, random = folder / "model.safetensors", torch.Generator().manual_seed(1)
    weights = load_file(file)
    moved = {k: v + 0.05 * torch.randn(v.shape, generator=random) for k, v in weights.items()}
    save_file(moved, file, {"format": "pt"})
    return folder


def config_of(policy: Path, teacher: Any, *penalties: Any, **sections: Any) -> Any:
    objective = {"shape": 0, "penalties": list(penalties), **sections.pop("objective", {})}
    scores = {"teacher": teacher if isinstance(teacher, dict) else {"model": str(teacher)}}
    merged = {**STEPS, **sections}
    return tiny_config(policy, "dapo-loss", scores=scores, objective=objective, **merged)


def logits_of(folder: Path, update: Any) -> Tensor:
    """The logits that predict each response token, from the model itself."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for prompt, response in update.sequences:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]])).logits[0]
        rows.append(logits[len(prompt) - 1 : -1])
    return torch.cat(rows)


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize(
    ("penalty", "kind", "settings"),
    [(JSD, "jsd", {"beta": 0.3}), (MIXED, "mixed_kl_topk", {"k": 5})],
)
def test_the_loss_of_a_run_is_that_of_all_logits_at_its_temperature(
    policy, teacher, tmp_path, updates, penalty, kind, settings
):
    training = {"steps": 1, "updates_per_step": updates, "learning_rate": 1e-12}
    sampling = {"temperature": 0.7}
    config = config_of(policy, teacher, penalty, training=training, sampling=sampling)
    run_training(config, tmp_path / "run")
    losses = []
    for update in read_tables(tmp_path / "run", [1]):
        logits = logits_of(policy, update) / 0.7, logits_of(teacher, update) / 0.7
        losses.append(float(divergence(kind, *logits, **settings).mean()))
    [line] = metrics(tmp_path / "run")
    assert len(losses) == updates
    assert line["loss/divergence_teacher"] == pytest.approx(sum(losses) / updates, rel=1e-4)
    assert line["train/grad_norm"] > 0


@pytest.mark.parametrize("penalty", [JSD, MIXED])
def test_distillation_reduces_the_divergence_at_any_size_of_a_micro_batch(
    policy, teacher, tmp_path, penalty
):
    losses = []
    for tokens in (40, 4096):
        training = {"steps": 4, "learning_rate": 5e-3, "micro_batch_tokens": tokens}
        config = config_of(policy, teacher, penalty, training=training)
        run_training(config, tmp_path / str(tokens))
        lines = metrics(tmp_path / str(tokens))
        losses.append([line["loss/divergence_teacher"] for line in lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0] / 2


def test_rules_read_the_kl_over_the_vocabulary_at_each_update(policy, teacher, tmp_path):
    objective = {"reweight": "when(teacher_kl > 0.001, 1, 0.5)", "shape": "teacher_gap"}
    reverse = {"kind": "divergence", "against": "teacher", "of": "reverse"}
    config = config_of(policy, teacher, reverse, objective=objective)
    run_training(config, tmp_path / "run")
    first, second = list(read_tables(tmp_path / "run", [1]))
    logits = logits_of(policy, first), logits_of(teacher, first)
    kl = divergence("reverse_kl", *logits)
    torch.testing.assert_close(first.table.columns["teacher_kl"], kl, rtol=1e-3, atol=1e-6)
    logits = logits_of(policy, second), logits_of(teacher, second)
    before = divergence("reverse_kl", *logits)
    assert (second.table.columns["teacher_kl"] - before).abs().max() > 1e-5  # the policy has moved


def test_a_teacher_that_is_the_policy_keeps_the_weights_of_the_start_of_a_step(policy, tmp_path):
    config = prepared(config_of(policy, {"model": "policy", "prompt": "{{ prompt }}1"}, JSD))
    with open_trainer(config, tmp_path / "run", CallerInputs()) as trainer:
        learner = trainer.learner
        before = learner.model.get_output_embeddings().weight.detach().clone()
        run_step(trainer)
        assert trainer.metrics["loss/divergence_teacher"] > 0
        assert trainer.metrics["train/grad_norm"] > 0
        states = learner.scores.teachers(torch.arange(1))["teacher_divergence"][1]
        assert torch.equal(states.head.weight, before)
        assert not torch.equal(learner.model.get_output_embeddings().weight, before)


def test_a_policy_with_adapters_diverges_from_its_reference_as_it_learns(policy, tmp_path):
    penalty = {"kind": "divergence", "against": "reference", "of": "reverse"}
    config = tiny_config(
        policy,
        "dapo-loss",
        objective={"penalties": [penalty], "reweight": "1 + reference_kl"},
        **{**STEPS, "training": {"steps": 3, "updates_per_step": 1, "learning_rate": 0.05}},
        model={"name": str(policy), "lora": {"rank": 2}},
    )
    run_training(config, tmp_path / "run")
    losses = [line["loss/divergence_reference"] for line in metrics(tmp_path / "run")]
    assert losses[0] == pytest.approx(0, abs=1e-6)
    assert losses[-1] > 1e-5


def test_a_run_that_distils_is_replayed(policy, teacher, tmp_path):
    training = {**STEPS["training"], "updates_per_step": 1}  # without a scoring pass
    run_training(config_of(policy, teacher, JSD, training=training), tmp_path / "run")
    replayed = rlobj.replay(tmp_path / "run", ["grpo", "prob < 0.5"])
    assert replayed.refused == {}
    assert replayed.reproduced == replayed.population


@pytest.mark.parametrize("penalty", [JSD, MIXED])
def test_a_teachers_own_end_token_stands_for_the_policys(policy, teacher, tmp_path, penalty):
    """The teacher with two rows of its head exchanged ends with the other token."""
    end, other = build_tokenizer().eos_token_id, 5
    exchanged, weights = tmp_path / "teacher", load_file(teacher / "model.safetensors")
    shutil.copytree(teacher, exchanged)
    head = weights["model.embed_tokens.weight"].clone()
    head[[end, other]] = head[[other, end]]
    file = exchanged / "model.safetensors"
    save_file({**weights, "lm_head.weight": head}, file, {"format": "pt"})
    config = json.loads((exchanged / "config.json").read_text())
    config |= {"eos_token_id": other, "tie_word_embeddings": False}
    (exchanged / "config.json").write_text(json.dumps(config))
    run_training(config_of(policy, teacher, penalty), tmp_path / "one")
    score = {"model": str(exchanged), "end": other}
    run_training(config_of(policy, score, penalty), tmp_path / "other")
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "other")
    for before, after in zip(one, two, strict=True):
        name = "loss/divergence_teacher"
        assert after[name] == pytest.approx(before[name], rel=1e-4)


@pytest.mark.parametrize(
    ("penalty", "objective", "message"),
    [
        (JSD, {}, "reads teacher_divergence over the whole vocabulary, .* or .*top: 20"),
        (MIXED, {"reweight": "1 + teacher_kl"}, "reads teacher_kl over the whole vocabulary"),
    ],
)
def test_a_server_gives_only_the_most_likely_tokens(policy, tmp_path, penalty, objective, message):
    server = {"server": "http://127.0.0.1:1"}
    with pytest.raises(ConfigError, match=message):
        run_training(config_of(policy, server, penalty, objective=objective), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp2"])
@pytest.mark.parametrize("penalty", [JSD, MIXED])
def test_two_ranks_distil_as_one(policy, teacher, tmp_path, strategy, penalty):
    config = config_of(policy, teacher, penalty, objective={"reweight": "1 + teacher_kl"})
    run_training(config, tmp_path / "one")
    file = write_config(config, tmp_path / "config.yaml")
    words = ["train", "--config", file, "--model", policy, "--strategy", strategy]
    ranks([*words, "--out", tmp_path / "two"], 2)
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        for name in ("loss/divergence_teacher", "train/grad_norm", "loss/total"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6), name
