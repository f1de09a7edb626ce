"""What `benchmarks.trainer` gives to both trainers, and which of it is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import trainer, trainer_work
from benchmarks.trainer_work import prepare, right_sum


@pytest.mark.parametrize(("work", "prompt", "response"), [("equal", 16, 64), ("chat", 96, 16)])
def test_prompts_and_responses_have_their_lengths(work, prompt, response, tmp_path: Path) -> None:
    made = prepare(work, 8.0, tmp_path)
    problems = [json.loads(line) for line in Path(made.problems).read_text().splitlines()]
    assert {len(each["prompt"].split()) for each in problems} == {prompt}
    assert made.max_tokens == response
    config = json.loads((tmp_path / "policy" / "config.json").read_text())
    assert config["n_positions"] == prompt + response


def test_sums_of_the_real_model_have_two_digits_and_their_answers(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(trainer_work, "real_model", lambda: tmp_path)
    made = prepare("real-60", 8.0, tmp_path)
    assert (made.prompts, made.group, made.max_tokens) == (2, 8, 60)
    for line in Path(made.problems).read_text().splitlines():
        problem = json.loads(line)
        first, second, question = problem["prompt"].split("\n")
        assert (first, second) == ("3 + 14 = 17", "25 + 36 = 61")
        numbers = [int(word) for word in question.removesuffix(" =").split(" + ")]
        assert sum(numbers) == int(problem["answer"])
        assert all(10 <= number <= 99 for number in numbers)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (" 88\n1 + 3", 1.0),
        (" = 88.", 1.0),
        ("\n88", 1.0),
        ("88", 0.0),
        (" 880", 0.0),
        (" 8 88", 0.0),
        (" -88", 0.0),
        ("", 0.0),
    ],
)
def test_the_first_whole_number_after_a_blank_answers_a_sum(response: str, reward: float) -> None:
    assert right_sum(response, "88") == reward


def test_only_the_chosen_works_are_measured_and_no_real_model_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable() -> None:
        raise ConnectionError("pip cannot download")

    def asked(module: str, question: dict[str, Any]) -> list[Any]:
        step = {"seconds": 2.0, "clock": 3.0, "rollout": 0.5, "length": 6.0, "reward": 0.25}
        return [{"steps": [step] * question["steps"], "mib": 1.0}]

    monkeypatch.setattr(trainer, "ask", asked)
    monkeypatch.setattr(trainer, "find_spec", lambda name: True)
    monkeypatch.setattr(trainer, "real_model", lambda: None)
    works = ["chat", "real-6", "real-60"]
    rows = trainer.measure(True, 1, works).rows
    assert [row["work"] for row in rows] == [work for work in works for _ in range(2)]
    assert {row["work"] for row in rows if "curve" in row} == {"real-6"}
    assert [row["samples"] for row in rows[::2]] == [32.0, 32.0, 8.0]
    monkeypatch.setattr(trainer, "real_model", unreachable)
    assert {row["work"] for row in trainer.measure(True, 1, works).rows} == {"chat"}
    assert "works with SmolLM2 are left out: pip cannot download" in capsys.readouterr().err
