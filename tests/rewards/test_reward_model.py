"""The reward of a sequence classifier, here and on a vLLM server."""

from __future__ import annotations

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from served import plain_server
from tiny import save_tiny_policy, tiny_config
from vllm_tools import NEEDS_VLLM

import rlobj
from rlobj.base.errors import ConfigError, RunError
from rlobj.base.ports import free_port
from rlobj.data import Problem
from rlobj.models.embedded import build_policy, build_tokenizer
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
    place = {"training.steps": 2, "rewards": [{**both[0], "batch_tokens": 99}, both[1]]}
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


@pytest.fixture
def answered(monkeypatch, tmp_path):
    """A server, its card, and its requests."""
    asked: list[Any] = []
    card = {"max_model_len": 9, "id": str(tmp_path)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({"data": [card]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers["Authorization"], body))
            self.answer({"data": [{"probs": [len(row)]} for row in body["input"]]})

        def answer(self, value: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, *_: Any) -> None: ...

    monkeypatch.setenv("RLOBJ_API_KEY", "mine")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", card, asked
        server.shutdown()


def test_a_server_gets_token_ids_and_gives_raw_outputs(tmp_path, answered):
    url, card, asked = answered
    (save_classifier(tmp_path) / "model.safetensors").unlink()
    found = grades(tmp_path, server=url)
    rows = build_tokenizer()([p.prompt + r for p, r in zip(ASKED, RESPONSES, strict=True)])
    lengths = [len(row) for row in rows["input_ids"]]
    wanted = [math.nan if length > 9 else length for length in lengths]
    assert [each.reward for each in found] == pytest.approx(wanted, nan_ok=True)
    path, key, body = asked[-1]
    assert (path, key, body["use_activation"]) == ("/classify", "Bearer mine", False)
    assert body["input"] == [row for row in rows["input_ids"] if len(row) <= 9]
    with Reward.build({"kind": "reward_model", "model": str(tmp_path), "server": url}).open() as it:
        assert it.score(RESPONSES, ASKED)[0].reward == lengths[0]  # nothing was checked before
    assert asked[-1][2]["input"] == body["input"]
    card["id"] = "another/model"
    with pytest.raises(ConfigError, match=r"serves another/model, not .* --served-model-name"):
        grades(tmp_path, server=url)
    card["root"] = str(tmp_path)
    assert len(grades(tmp_path, server=url)) == len(RESPONSES)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.skipif(**NEEDS_VLLM)
def test_a_pooling_server_of_vllm_has_the_outputs_of_transformers(tmp_path, monkeypatch):
    """It gives raw outputs of all inputs that it can read, and none for longer ones."""
    monkeypatch.setenv("RLOBJ_API_KEY", "plain")
    folder = save_classifier(tmp_path, max_position_embeddings=8)
    with plain_server(folder, "--runner=pooling") as (_, url):
        found = [each.reward for each in grades(folder, server=url)]
    expected = [each.reward for each in grades(folder)]
    assert found == pytest.approx(expected, abs=1e-4, nan_ok=True)
    assert any(map(math.isnan, found))


def test_a_server_that_is_gone_ends_the_run_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr("rlobj.rewards.reward_model._PAUSES", (0, 0))
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(RunError, match=r"does not answer: [^$]*vllm serve .* --runner pooling"):
        grades(save_classifier(tmp_path), server=url)


def test_a_device_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be loaded onto cuda:77 \(rewards\.device\): "):
        grades(save_classifier(tmp_path), device="cuda:77")
