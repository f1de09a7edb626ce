"""`rlobj.evaluate`: from a model and problems to a result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.evaluation import compare, summarise_folder
from rlobj.models.policy import load_policy
from rlobj.runs.configuration import read_run_config

ROWS = [{"id": f"p{a}", "problem": f"{a}+1=", "answer": str(a + 1)} for a in range(4)]
QUICK: dict[str, Any] = {"n": 3, "max_tokens": 6, "template": "{prompt}", "reward": "exact"}


class Events(rlobj.EvaluationCallback):
    """Keeps the names of the events, and what was noted."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.notes: list[str] = []
        for name in vars(rlobj.EvaluationCallback):
            if not name.startswith("_"):
                setattr(self, name, lambda *args, name=name, **_: self._receive(name, *args))

    def _receive(self, name: str, *args: Any) -> None:
        self.names.append(name)
        self.notes += [args[0]] if name == "noted" else []


def loaded(policy: Path) -> dict[str, Any]:
    """The policy as a model object with its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    return {"model": model, "tokenizer": AutoTokenizer.from_pretrained(policy)}


@pytest.fixture(scope="module")
def stored(policy, tmp_path_factory) -> rlobj.EvaluationResult:
    """An evaluation in a folder, which no test changes."""
    return rlobj.evaluate(policy, ROWS, **QUICK, out=tmp_path_factory.mktemp("stored") / "out")


def texts(result: rlobj.EvaluationResult) -> list[list[str]]:
    return [row["responses"] for row in result.rows]


def test_evaluation_in_memory_writes_no_file(policy, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = rlobj.evaluate(policy, ROWS, **QUICK)
    assert list(tmp_path.iterdir()) == []
    assert result.path is None
    assert [row["id"] for row in result.rows] == ["p0", "p1", "p2", "p3"]
    assert all(len(row["responses"]) == len(row["correct"]) == 3 for row in result.rows)
    estimate = result.benchmarks["problems"].estimate
    assert result.accuracies == {"problems": estimate.mean}
    assert (result.accuracy, result.interval) == (estimate.mean, estimate.interval)
    assert result.to_markdown().startswith("|  | problems |")
    assert result.to_dict()["results"]["problems"]["avg@3"] == estimate.mean


def test_a_model_object_gives_the_responses_of_its_folder_and_another_is_refused(
    policy, stored, tmp_path
) -> None:
    model, out = loaded(policy), tmp_path / "out"
    assert texts(rlobj.evaluate(on=ROWS, **model, **QUICK, out=out)) == texts(stored)
    assert texts(rlobj.evaluate(on=ROWS, **model, **QUICK, seed=1)) != texts(stored)
    with pytest.raises(ConfigError, match="save the model, and pass the folder"):
        rlobj.evaluate(on=ROWS, **model, **QUICK, sampler="vllm")
    with torch.no_grad():
        next(model["model"].parameters())[0, 0] += 1
    with pytest.raises(ConfigError, match=r"model\.weights: .* there, .* now"):
        rlobj.evaluate(on=ROWS, **model, **QUICK, out=out)


def test_the_same_call_continues_an_evaluation_and_samples_nothing_twice(
    policy, stored, tmp_path
) -> None:
    out = shutil.copytree(stored.path, tmp_path / "out")
    lines = (out / "samples.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 12
    (out / "samples.jsonl").write_text("".join(lines[:5]))
    events = Events()
    again = rlobj.evaluate(policy, ROWS, **QUICK, out=out, callback=events)
    assert texts(again) == texts(stored)
    assert (out / "samples.jsonl").read_text() == "".join(lines)
    assert "problems: 5 of 12 responses are there already" in events.notes
    files = {path.name for path in out.iterdir()} - {".lock"}
    assert files == {
        *("settings.json", "problems.jsonl", "samples.jsonl", "grades.jsonl"),
        *("results.json", "results.md", "report.html"),
    }
    assert texts(summarise_folder(out)) == texts(stored)


def test_the_weights_are_read_to_the_gpu(policy, monkeypatch) -> None:
    """Processes that read all weights to the host's memory first may fill it."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    placed = Mock(side_effect=InterruptedError)
    monkeypatch.setattr("rlobj.models.policy.load_policy", placed)
    with pytest.raises(InterruptedError):
        rlobj.evaluate(policy, ROWS, **QUICK)
    assert placed.call_args.kwargs == {"device": "cuda"}


def test_other_settings_than_those_in_the_folder_are_refused(policy, stored) -> None:
    with pytest.raises(ConfigError, match=r"problems\.temperature: 1\.0 there, 0\.5 now"):
        rlobj.evaluate(policy, ROWS, **QUICK, out=stored.path, temperature=0.5)
    with pytest.raises(ConfigError, match="has files, but is not an evaluation"):
        rlobj.evaluate(policy, ROWS, **QUICK, out=policy)


@pytest.mark.slow
def test_a_system_message_is_that_of_the_run_and_belongs_to_the_settings(policy, tmp_path) -> None:
    folder = shutil.copytree(policy, tmp_path / "chat")
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = "{% for each in messages %}{{ each.content }}{% endfor %}{{ mark }}"
    tokenizer.save_pretrained(folder)
    rlobj.evaluate(folder, ROWS, **QUICK, out=tmp_path / "plain")
    settings: dict[str, Any] = {"data.system": "9+9="}
    with pytest.raises(ConfigError, match=r"problems\.system: None there, '9\+9=' now"):
        rlobj.evaluate(folder, ROWS, **QUICK, settings=settings, out=tmp_path / "plain")
    settings |= {"model.chat_template_kwargs": {"mark": "="}, "sampling.prompts_per_step": 2}
    settings |= {"training.steps": 1, "sampling.max_tokens": 3, "evaluation.problems": 2}
    run = rlobj.train(
        "grpo", model=folder, data="max-digits", settings=settings, out=tmp_path / "run"
    )
    config = read_run_config(run.path)
    trained, problem = load_policy(config.model, config.data, str(folder)), Problem("", "3,4=", "4")
    for encode in (trained.encode, trained.encode_test):
        assert tokenizer.decode(encode(problem)).replace(" ", "") == "9+9=3,4=="
    rlobj.evaluate(run.path, ROWS, **QUICK, out=tmp_path / "chatted")
    [stored] = json.loads((tmp_path / "chatted/settings.json").read_text())["benchmarks"].values()
    assert (stored["system"], stored["chat_template_kwargs"]) == ("9+9=", {"mark": "="})


def test_a_function_grades_the_rows(policy) -> None:
    def grade(response: str, answer: str, level: int) -> dict[str, float]:
        return {"reward": level, "correct": level > 1}

    rows = ({**row, "level": level} for level, row in enumerate(ROWS))
    result = rlobj.evaluate(policy, rows, **{**QUICK, "reward": grade})
    assert [row["accuracy"] for row in result.rows] == [0, 0, 1, 1]
    assert [row["rewards"][0] for row in result.rows] == [0, 1, 2, 3]
    reward = result.settings["benchmarks"]["problems"]["reward"]
    assert reward["target"].endswith("grade>")


def test_error_says_why_the_model_cannot_answer_and_what_to_ask_instead(policy, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"exceed the \d+ positions of this model"):
        rlobj.evaluate(policy, ROWS, n=1, template="{prompt}", max_tokens=100_000)
    long = [{"problem": "1+" * 50_000, "answer": "1"}, ROWS[0]]
    with pytest.raises(ConfigError, match="this model, on problems"):
        rlobj.evaluate(policy, long, n=1, template="{prompt}")
    words = [{"problem": "How many?", "answer": "1"}]
    rows = [{"problem": f"{i}: Let $x$ " + "and so on " * 30, "answer": "1"} for i in range(2)]
    (tmp_path / "aime24.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for of_the_embedded_policy in (words, "aime24"):
        with pytest.raises(ConfigError) as caught:
            rlobj.evaluate("embedded", of_the_embedded_policy, n=1, data_dir=tmp_path)
        assert "characters that its tokenizer does not know" in str(caught.value)
        assert "or set template=TEXT" in str(caught.value)


def test_a_callback_receives_the_events_in_order(policy) -> None:
    events = Events()
    rlobj.evaluate(policy, ROWS, **QUICK, callback=events)
    assert list(dict.fromkeys(events.names)) == [
        *("started", "ready", "graded", "sampled", "finished")
    ]


def test_the_embedded_policy_is_asked_ones_own_sums_as_it_learned_them() -> None:
    sums = [{"problem": f"{a}+{b}+3=", "answer": str(a + b + 3)} for a in (2, 4) for b in (0, 1, 7)]
    result = rlobj.evaluate("embedded", sums, n=8)
    assert result.settings["benchmarks"]["problems"]["template"] == "{prompt}"
    assert result.accuracy > 0


def test_results_and_folders_are_compared_alike(policy, stored, tmp_path) -> None:
    one, two = stored, rlobj.evaluate(policy, ROWS, **QUICK, seed=1, out=tmp_path / "two")
    comparison = compare(one, two)
    assert comparison.benchmarks == compare(one.path, tmp_path / "two").benchmarks
    assert comparison.settings == (("problems.seed", 0, 1),)
    [benchmark] = comparison.benchmarks
    assert benchmark.difference == one.accuracy - two.accuracy
    assert "| benchmark |" in comparison.to_markdown()
    message = "have no benchmark in common"
    with pytest.raises(ConfigError, match=message):
        compare(one, rlobj.evaluate(policy, "addition", limit=1, n=1, max_tokens=4))
