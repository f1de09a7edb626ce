"""Evaluations whose responses are conversations with an environment."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from benchmarks.embedded_policy import build_policy, build_tokenizer
from chats import chat_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM
from typer.testing import CliRunner

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.conversations import Turn
from rlobj.data import Problem
from rlobj.evaluation import compare, regrade
from rlobj.evaluation.report.page import write_page
from rlobj.evaluation.responses import sample_and_grade
from rlobj.models.embedded import SCRATCHPAD_ALPHABET
from rlobj.rewards import Reward
from rlobj.runs.evaluation_samples import Samples
from rlobj.samplers import Response, SamplingSettings
from rlobj.samplers.response import TurnRecord
from rlobj_cli.app import app

ROWS = [{"prompt": f"{a}*7=", "answer": str(7 * a)} for a in range(10, 18)]
GAME = """
from rlobj.conversations import Turn

class Game:
    def __init__(self):
        self.said = []

    def reset(self, problem):
        self.said = []

    def step(self, messages):
        self.said.append(messages[-1]["content"])
        done = len(self.said) == 2
        right = len(self.said[-1]) % 2 == 0
        return Turn("0=", reward=0.25 + right * done, done=done, correct=right if done else None)
"""


class Silent:
    """It ends each conversation at once and says nothing about it."""

    def reset(self, problem: Any) -> None:
        pass

    def step(self, messages: Any) -> Turn:
        return Turn(reward=0.5, done=True)


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    """A random policy that can write calls of the calculator."""
    alphabet = SCRATCHPAD_ALPHABET + "?"
    return {"model": build_policy(0, alphabet), "tokenizer": build_tokenizer(alphabet)}


def evaluated(model: dict[str, Any], **given: Any) -> Any:
    settings = {"sampling.max_tokens": 40, "sampling.stop": [";"], "model.chat_template": False}
    settings |= given.pop("settings", {})
    return rlobj.evaluate(
        **model, on=ROWS, template="{prompt}", settings=settings, **{"n": 2, **given}
    )


def test_conversations_are_stored_continued_and_graded_again(model, tmp_path):
    (tmp_path / "game.py").write_text(GAME)
    game, out = f"{tmp_path / 'game.py'}:Game", tmp_path / "evaluation"
    first = evaluated(model, environment=game, out=out, n=1)
    kept = (out / "samples.jsonl").read_text()
    result = evaluated(model, environment=game, out=out)
    assert (out / "samples.jsonl").read_text().startswith(kept)
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    whole = [line for line in lines if line["finish"] == "stop"]
    assert len(lines) == 16 > len(whole) > 4
    right = 0
    for line in whole:
        turns = line["turns"]
        assert [turn["end"] for turn in turns] == ["", "done"]
        assert (turns[0]["observation"], turns[0]["reward"]) == ("0=", 0.25)
        assert line["response"] == turns[1]["text"]
        right += len(turns[1]["text"]) % 2 == 0
    assert result.accuracy == right / 16 > 0
    assert first.accuracy * 8 <= right
    assert "Changed grades" not in compare(out, regrade(out)).to_markdown()
    with pytest.raises(ConfigError, match=r"environment\.max_turns: 16 there, 2 now"):
        evaluated(model, environment=game, out=out, settings={"environment.max_turns": 2})
    stored = json.loads((out / "settings.json").read_text())["benchmarks"]
    assert all("rollout_tokens" not in benchmark for benchmark in stored.values())
    with pytest.raises(ConfigError, match=r"rollout_tokens: .* there, 9 now"):
        evaluated(model, environment=game, out=out, settings={"sampling.rollout_tokens": 9})
    (tmp_path / "game.py").write_text(GAME.replace("0.25", "0.5"))
    with pytest.raises(ConfigError, match=r"environment\.code"):
        evaluated(model, environment=game, out=out)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


@pytest.mark.parametrize("tools", [" calculator, python,", ["calculator", add]])
def test_tools_are_offered_and_named_in_the_settings(tools: Any) -> None:
    """A random policy calls none of them: its first turn is its answer."""
    tokenizer = chat_tokenizer("qwen3")
    names = ("hidden_size", "intermediate_size", "head_dim", "num_hidden_layers")
    size: dict[str, Any] = dict(zip(names, (32, 32, 16, 1), strict=True))
    size |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **size))
    given = {"model": model, "tokenizer": tokenizer, "on": ROWS, "max_tokens": 8, "n": 1}
    result = rlobj.evaluate(**given, tools=tools, reward="exact", template="{prompt}")
    named = result.settings["benchmarks"]["problems"]["environment"]["tools"]
    assert named == ["calculator", "python" if isinstance(tools, str) else "<Python object add>"]
    [problems] = [each.problems for each in result.benchmarks.values()]
    assert {len(x.turns) for each in problems for x in each.responses} == {1}
    assert result.accuracy == 0
    plain = rlobj.evaluate(**given, reward="exact", template="{prompt}")
    assert "environment" not in plain.settings["benchmarks"]["problems"]


def test_an_environment_may_be_a_python_class_that_only_rewards(model, tmp_path):
    result = evaluated(model, environment=Silent)
    assert {row["prompt"] for row in result.rows} == {row["prompt"] for row in ROWS}
    assert 0 < result.reward <= 0.5
    with pytest.raises(ConfigError, match="Did you mean 'calculator'"):
        evaluated(model, environment="calculater", out=tmp_path / "evaluation")
    assert not (tmp_path / "evaluation").exists()


def test_a_cut_conversation_without_a_verdict_counts_as_wrong(model):
    """The calculator judges the answer, and half of these conversations have none."""
    result = evaluated(model, environment="calculator")
    assert result.accuracy == 0
    [problems] = [each.problems for each in result.benchmarks.values()]
    verdicts = {
        (x.finish, y.correct) for p in problems for x, y in zip(p.responses, p.grades, strict=True)
    }
    assert verdicts == {("stop", False), ("length", None)}


def test_a_run_is_evaluated_with_its_environment_and_its_code_needs_trust(model, tmp_path):
    (tmp_path / "game.py").write_text(GAME)
    run = tmp_path / "run"
    settings = {"training.steps": 1, "sampling.max_tokens": 20, "sampling.prompts_per_step": 4}
    settings |= {
        "sampling.group_size": 2,
        "data.template": "{prompt}",
        "sampling.stop": [";"],
        "model.chat_template": False,
    }
    named = {"environment": f"{tmp_path / 'game.py'}:Game", "settings": settings}
    rlobj.train("grpo", **model, data=ROWS, out=run, **named)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    runner, out = CliRunner(env={"COLUMNS": "200"}), tmp_path / "evaluation"
    command = ["eval", str(run), "--on", str(tmp_path / "rows.jsonl"), "-n", "1", "-o", str(out)]
    refused = runner.invoke(app, command)
    assert refused.exit_code == 2
    assert "game.py:Game" in refused.output
    assert "--trust" in refused.output
    result = runner.invoke(app, [*command, "--trust", "--set", "environment.max_turns=1"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert {len(line["turns"]) for line in lines} == {1}
    stored = json.loads((out / "settings.json").read_text())["benchmarks"]["rows.jsonl"]
    assert stored["environment"]["max_turns"] == 1
    own = runner.invoke(app, [*command[:-1], str(tmp_path / "own"), "--environment", "calculator"])
    assert own.exit_code == 0, own.output


def test_a_conversation_of_several_rows_is_one_sample(tmp_path):
    """Its rows are a turn that calls a sub-agent and goes on, the sub-agent, and a new context."""

    def row(began: str, numbers: list[int], finish: str = "stop") -> Response:
        turns = [TurnRecord(2, f"t{n}", array("i"), number=n, end="") for n in numbers]
        ids = [1] * 2 * len(turns)
        text = turns[-1].text
        return Response([5], ids, [0.0] * len(ids), text, finish, 0, turns=turns, began=began)  # type: ignore[arg-type]

    class Conversing:
        def sample(self, problems, *, count, settings, seeds, done=None):
            return [
                [row("", [0, 2]), row("call", [1]), row("restart", [3], "length")],
                [row("", [0])],
            ]

    problems = [Problem("a", "1*7=", "t3"), Problem("b", "2*7=", "14")]
    stored = Samples(tmp_path)
    stored.write_problems({"evaluation": problems})
    arguments: Any = (None, None, problems)
    with Reward.build("exact").open() as grader:
        graded = sample_and_grade(
            *arguments,
            grader,
            SamplingSettings(max_tokens=9),
            count=1,
            seed=0,
            samples=stored,
            conversations=Conversing(),  # type: ignore[arg-type]
        )
    assert graded.accuracy == 0.5
    assert (graded.samples, graded.numbers["responses"]) == (1, 2)
    assert (graded.numbers["length_mean"], graded.numbers["truncated"]) == (5, 0.5)
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [len(line["turns"]) for line in lines] == [4, 1]
    assert [turn["text"] for turn in lines[0]["turns"]] == ["t0", "t1", "t2", "t3"]
    began = [(turn.get("row"), turn.get("began")) for turn in lines[0]["turns"]]
    assert began == [(None, None), (1, "call"), (None, None), (2, "restart")]
    again = Samples(tmp_path)
    again.read()
    assert [*again.responses] == [*stored.responses]
    turns = again.responses["evaluation", "a", 0].turns
    assert [(turn.row, turn.began) for turn in turns] == [
        *((0, ""), (1, "call"), (0, ""), (2, "restart"))
    ]
    write_page(tmp_path / "report.html", [graded], {"model": "m"})
    page = (tmp_path / "report.html").read_text()
    assert page.count("row 1, call; reward 0") == page.count("row 2, restart; reward 0") == 1
