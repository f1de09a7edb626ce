"""The reward of a sequence classifier, here and on a vLLM server."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_policy, build_tokenizer
from tiny import save_tiny_policy, tiny_config

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.rewards import Reward
from rlobj.training import run_training

CHAT = "{% for m in messages %}{{ '<' if m.role == 'user' else '=' }}{{ m.content }}{% endfor %}"
ASKED = [Problem(str(i), f"{i},{9 - i}=", "") for i in range(8)]
RESPONSES = ["9", "1,2,3", "", "77=7", "5", "5,5", "0000000", "3"]


def save_classifier(
    folder: Path, labels: int = 1, chat: str | None = None, seed: int = 3, **fields: Any
) -> Path:
    """A random classifier that reads what the embedded policy reads."""
    from transformers import Qwen3ForSequenceClassification

    config = build_policy(0).config
    config.update({"num_labels": labels, "pad_token_id": 0, **fields})
    torch.manual_seed(seed)
    model = Qwen3ForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = chat
    tokenizer.save_pretrained(folder)
    return folder


def alone(folder: Path, texts: list[str]) -> list[float]:
    """The outputs of the classifier for single texts."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    rows = build_tokenizer()(texts, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        return [float(model(torch.tensor([row])).logits) for row in rows]


def grades(folder: Path, **settings: Any) -> list[Any]:
    with Reward.build({"kind": "reward_model", "model": str(folder), **settings}).open() as grader:
        grader.check(ASKED)
        return grader.score(RESPONSES, ASKED)


@pytest.mark.parametrize(
    ("chat", "form", "fields"),
    [(None, "{}{}", {}), (CHAT, "<{}={}", {"pad_token_id": None})],
    ids=["padded", "a chat without a padding token"],
)
def test_a_batch_has_the_outputs_of_single_texts(tmp_path, chat, form, fields):
    folder = save_classifier(tmp_path, chat=chat, **fields)
    pairs = zip(ASKED, RESPONSES, strict=True)
    expected = alone(folder, [form.format(problem.prompt, text) for problem, text in pairs])
    for tokens in (1, 20, 1000):
        found = grades(folder, batch_tokens=tokens, device="cpu:0")
        assert [each.reward for each in found] == pytest.approx(expected, rel=1e-5)
    assert {each.correct for each in found} == {None}
    middle = sorted(expected)[3]
    found = grades(folder, threshold=middle - 1e-6)
    assert [each.correct for each in found] == [value >= middle for value in expected]


def test_a_response_beyond_the_context_is_undecided_with_its_reason(tmp_path):
    folder = save_classifier(tmp_path, max_position_embeddings=8)
    found = grades(folder)
    assert [math.isnan(each.reward) for each in found] == [len(text) > 4 for text in RESPONSES]
    assert found[1].reason == "longer than the reward model's 8 tokens"


def without_weights(folder: Path) -> None:
    (save_classifier(folder) / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (lambda folder: save_classifier(folder, labels=2), r"has 2 outputs \(num_labels\)"),
        (save_tiny_policy, "expected a sequence classifier with one"),
        (without_weights, "no file named model.safetensors"),
    ],
)
def test_what_is_no_reward_model_is_refused_before_the_policy_loads(
    policy, tmp_path, monkeypatch, save, message
):
    save(tmp_path / "classifier")
    monkeypatch.setattr("rlobj.training.loop.initial.load_policy", None)
    rewards = {"kind": "reward_model", "model": str(tmp_path / "classifier")}
    with pytest.raises(ConfigError, match=message):
        run_training(tiny_config(policy, rewards=rewards), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_learns_from_a_reward_model_and_another_reward(policy, tmp_path):
    """The problems need no answers for the model alone; the run resumes from any folder."""
    folder = save_classifier(tmp_path / "classifier")
    short = {"training.steps": 1, "sampling.max_tokens": 3, "evaluation.every": 1}
    short |= {"data.template": "{prompt}", "data.test_fraction": 0.5, "output.tables_every": 0}
    rows = [{"prompt": problem.prompt} for problem in ASKED]
    one = {"kind": "reward_model", "model": str(folder)}
    run = rlobj.train(
        "grpo", model=policy, data=rows, reward=one, settings=short, out=tmp_path / "a"
    )
    assert run.history[-1]["reward/std"] > 0
    assert math.isfinite(run.history[-1]["eval/reward"])
    assert "reward/accuracy" not in run.history[-1]
    both = [{"name": "judge", **one, "weight": 2}, {"name": "exact", "kind": "exact"}]
    run = rlobj.train(
        "gdpo", data="max-digits", model=policy, reward=both, settings=short, out=tmp_path / "b"
    )
    line = run.history[-1]
    place = {"training.steps": 2}
    assert rlobj.resume(tmp_path / "b", settings=place).history[-1]["step"] == 2
    total = 2 * line["reward/judge/mean"] + line["reward/exact/mean"]
    assert line["reward/mean"] == pytest.approx(total, abs=1e-6)
    assert "reward/accuracy" in line
    found = rlobj.evaluate(tmp_path / "a", on=rows, settings={"evaluation.samples": 2})
    [benchmark] = found.benchmarks.values()
    assert math.isfinite(benchmark.estimate.mean)
    save_classifier(folder, seed=4)
    for go_on in (
        lambda: rlobj.resume(tmp_path / "b", settings={"training.steps": 3}),
        lambda: rlobj.evaluate(tmp_path / "a", on=rows, settings={"evaluation.samples": 2}),
    ):
        with pytest.raises(ConfigError, match=f"{folder} is not the reward model .* has changed"):
            go_on()


def test_a_device_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be loaded onto cuda:77 \(rewards\.device\): "):
        grades(save_classifier(tmp_path), device="cuda:77")
