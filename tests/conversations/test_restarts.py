"""Rollouts of several rows: contexts that begin anew, and sub-agents."""

from __future__ import annotations

import dataclasses
import math
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from chats import chat_tokenizer
from test_driving import PROBLEMS, TOKENIZER, Echo, hold, model
from test_methods import ASKS, Script

from rlobj import Call, Turn
from rlobj.base.errors import RunError
from rlobj.conversations import EnvironmentSettings
from rlobj.conversations.grading import grades_of
from rlobj.conversations.opening import open_conversations
from rlobj.data import Chat, Problem
from rlobj.rewards import function_grader
from rlobj.samplers import Response, SamplingSettings
from rlobj.samplers.response import ROWS, rollouts_of, whole
from rlobj.scoring import score_samples

__all__ = ["model"]
QWEN = chat_tokenizer("qwen3")


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Restarts(Echo):
    """Goes on six turns; after each second one in a new context."""

    def step(self, messages: Any) -> Turn:
        turn = super().step(messages)
        if len(self.seen) % 2 or len(self.seen) == 6:
            return dataclasses.replace(turn, observation="7,", done=len(self.seen) == 6)
        return Turn(restart=user(f"{len(self.seen)}*7="), reward=0.5)


def held(model: Any, environment: Any, **limits: Any) -> list[list[Response]]:
    return rollouts_of(hold(model, environment, **limits))


def test_a_restart_begins_a_row_with_its_messages_and_the_rollout_goes_on(model):
    rollouts = held(model, Restarts, max_turns=6)
    assert max(map(len, rollouts)) == 3
    for number, rows in enumerate(rollouts):
        assert [row.began for row in rows] == ["", "restart", "restart"][: len(rows)]
        assert [row.id for row in rows] == [number % 2 + k * ROWS for k in range(len(rows))]
        assert [row.rollout for row in rows] == [number % 2] * len(rows)
        turns = [turn for row in rows for turn in row.turns]
        assert [turn.number for turn in turns] == [*range(len(turns))]
        assert [turn.end for turn in turns[:-1]] == [""] * (len(turns) - 1)
        for k, row in enumerate(rows[1:], 1):
            assert TOKENIZER.decode(row.prompt) == f"{2 * k}*7="
            assert row.text == row.turns[-1].text
        for row in rows[:-1]:
            assert (len(row.turns), row.finish, len(row.turns[-1].observed)) == (2, "stop", 0)


def test_each_row_is_scored_as_it_was_drawn(model):
    rows = [row for rollout in held(model, Restarts, max_turns=6) for row in rollout]
    scored = score_samples(model, [(row.prompt, row.interleaved) for row in rows]).logprobs
    drawn = torch.tensor([logprob for row in rows for logprob in row.logprobs])
    assert torch.allclose(scored, drawn, atol=1e-5)


@pytest.mark.parametrize(
    ("limits", "end", "turns"),
    [
        ({"max_turns": 3}, "turns", 3),
        ({"max_turns": 2}, "turns", 2),
        ({"tokens": 20}, "tokens", 6),
        ({"tokens": 20, "rollout_tokens": 30}, "tokens", 6),
    ],
)
def test_limits_are_those_of_the_rollout(model, limits, end, turns):
    rollouts = held(model, Restarts, **{"max_turns": 6, **limits})
    assert end in {rows[-1].turns[-1].end for rows in rollouts}
    longest = limits.get("rollout_tokens", limits.get("tokens", 60))
    for rows in rollouts:
        assert sum(len(row.turns) for row in rows) <= turns
        assert sum(row.length for row in rows) <= longest
        assert all(row.length <= limits.get("tokens", 60) for row in rows)
        assert all(row.finish == "stop" for row in rows[:-1])
    if "rollout_tokens" in limits:
        assert max(sum(row.length for row in rows) for rows in rollouts) > limits["tokens"]


class Breaks(Restarts):
    def step(self, messages: Any) -> Turn:
        if len(self.seen) == 2:
            raise OSError("no disk")
        return super().step(messages)


def test_an_environment_that_fails_in_a_later_row_leaves_the_whole_rollout_undecided(model):
    rollouts = held(model, Breaks, max_turns=6, max_failures=1000)
    broken = [rows for rows in rollouts if rows[-1].turns[-1].end == "broken"]
    assert [len(rows) for rows in broken] == [2] * len(broken)
    assert broken
    with function_grader(lambda response, answer: 1.0, "mine") as grader:
        for rows in broken:
            [grade] = grades_of(grader, rows, PROBLEMS[:2], "graded")
            assert grade.undecided


class Long(Echo):
    def step(self, messages: Any) -> Turn:
        return Turn(restart=user("1" * 200))


def test_a_restart_without_room_ends_the_rollout_at_the_limit_of_tokens(model):
    for rows in held(model, Long, max_turns=6):
        assert [(len(row.turns), row.turns[-1].end, row.finish) for row in rows] == [
            (1, "tokens", "length")
        ]


def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return {"a": "b", "c": "d"}[word]


class Asks:
    """Asks sub-agents after the first turn, and judges the second one."""

    calls: ClassVar[Any] = [Call(user("first"), [lookup]), Call(user("second"))]
    read: ClassVar[list[Any]] = []

    def reset(self, problem: Problem) -> Any:
        return user("begin")

    def step(self, messages: Any) -> Turn:
        self.read[:] = messages
        if len(messages) == 2:
            return Turn("told", 0.25, calls=self.calls)
        return Turn(reward=1.0, done=True, correct=True)


def scripted(*turns: str, environment: Any = Asks, **settings: Any) -> tuple[list[Response], Any]:
    """The rows of one rollout, and what the policy reads before each turn."""
    sampler: Any = Script(*turns)
    problem = settings.pop("problem", Problem("1", "", ""))
    tokens = {"max_tokens": 2000, "rollout_tokens": settings.pop("rollout_tokens", None)}
    with open_conversations(
        *(EnvironmentSettings(**{"target": "given", **settings}), sampler, QWEN, Chat()),
        lambda problem: problem.prompt,
        environment=environment,
    ) as conversations:
        asked = SamplingSettings(**tokens)
        [rows] = conversations.sample([problem], count=1, settings=asked, seeds=[1])
    return rows, sampler.read


USES = ASKS % ("lookup", '"word": "a"')
SAID = ("I ask.", USES, "2nd", "1st", "end")
"""Turns of the policy: of the main row, of both sub-agents, of the first one, of the main row."""


def test_sub_agents_answer_side_by_side_with_tools_and_are_heard_in_order():
    rows, read = scripted(*SAID)
    assert [(row.began, row.id) for row in rows] == [("", 0), ("call", ROWS), ("call", 2 * ROWS)]
    numbers = [[(turn.number, turn.text, turn.end) for turn in row.turns] for row in rows]
    assert numbers == [
        [(0, "I ask.", ""), (4, "end", "done")],
        [(1, USES, ""), (2, "1st", "done")],
        [(3, "2nd", "done")],
    ]
    assert [row.finish for row in rows] == ["stop"] * 3
    assert rows[0].turns[0].observation == "told\n1st\n2nd"
    assert [m["content"] for m in Asks.read[1:]] == ["I ask.", "told", "1st", "2nd", "end"]
    assert '"name": "lookup"' in read[1]
    assert "lookup" not in read[2]
    assert "<tool_response>\nb\n</tool_response>" in read[3]
    heard = "told<|im_end|>\n<|im_start|>user\n1st<|im_end|>\n<|im_start|>user\n2nd<|im_end|>"
    assert heard in read[4]


def test_a_rollout_has_one_grade_of_all_its_turns():
    rows, _ = scripted(*SAID)
    told = []

    def score(response: str, answer: str, turns: Any) -> float:
        told.append((response, [turn["text"] for turn in turns], turns[-1]["end"]))
        return 1.0

    with function_grader(score, "mine") as grader:
        [grade] = grades_of(grader, rows, [Problem("1", "", "")] * 3, "graded")
    assert grade.reward == 1.0
    assert told == [("end", ["I ask.", USES, "1st", "2nd", "end"], "done")]
    assert whole(rows).length == sum(row.length for row in rows)


@pytest.mark.parametrize(
    ("limits", "rows", "end"),
    [
        ({"max_turns": 1}, 1, "turns"),
        ({"max_turns": 2}, 1, "turns"),  # one turn for two sub-agents
        ({"max_turns": 3}, 1, "turns"),  # and one that hears them
        ({"rollout_tokens": 5}, 1, "tokens"),
        ({"max_errors": 0}, 3, "errors"),
    ],
)
def test_sub_agents_share_the_limits_of_the_rollout(limits, rows, end):
    said = list(SAID)
    if "max_errors" in limits:
        said[1] = ASKS % ("lookup", '"word": "x"')
    found, _ = scripted(*said, **limits)
    assert (len(found), found[0].turns[-1].end, found[0].finish) == (rows, end, "length")


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_verdict_counts_if_a_limit_ends_the_rollout_after_sub_agents(at_the_end):
    class Judges(Asks):
        def step(self, messages: Any) -> Turn:
            return Turn("told", 0.5, correct=True, calls=self.calls)

    limits: Any = {"max_turns": 1} if at_the_end else {"max_errors": 0}
    said = ("I ask.", ASKS % ("lookup", '"word": "x"'), "2nd", "1st", "end")
    rows, _ = scripted(*said, environment=Judges, **limits)
    assert len(rows) == (1 if at_the_end else 3)
    rollout = whole(rows)
    assert (rollout.turns[-1].correct, rollout.turns[-1].number) == (True, 0)
    assert rollout.turns[-1].end == rows[0].turns[-1].end != ""
    assert math.fsum(turn.reward for turn in rollout.turns) == 0.5


def test_the_turn_before_a_restart_shows_the_new_context():
    class Anew(Asks):
        def step(self, messages: Any) -> Turn:
            return Turn(restart=user("sum")) if messages[0] == user("begin")[0] else Turn(done=True)

    rows, _ = scripted("one", "two", environment=Anew)
    assert [row.turns[-1].observation for row in rows] == ["sum", ""]
    assert len(rows[0].turns[-1].observed) == 0


class Newer(Script):
    """Its weights change before its third turn."""

    def stream(self, feed: Any, settings: Any, arrived: Any) -> None:
        versions = iter([1, 1, 2, 2, 2])

        def changed(request: Any, sample: Response) -> None:
            version = next(versions)
            drawn = ((version, sample.length),)
            arrived(request, dataclasses.replace(sample, weight_version=version, versions=drawn))

        super().stream(feed, settings, changed)


def test_each_row_of_a_rollout_says_which_tokens_are_of_which_weights(monkeypatch):
    monkeypatch.setattr(f"{__name__}.Script", Newer)
    rows, _ = scripted(*SAID)
    sizes = [[turn.size for turn in row.turns] for row in rows]
    assert [row.versions for row in rows] == [
        ((1, sizes[0][0]), (2, sizes[0][1])),
        ((1, sizes[1][0]), (2, sizes[1][1])),
        ((2, sizes[2][0]),),
    ]
    assert [row.weight_version for row in rows] == [2, 2, 2]


def deeper() -> Any:
    """Ask another one."""
    return Call(user("deeper"))


class Deeper(Asks):
    calls: ClassVar[Any] = [Call(user("first"), [deeper])]


def test_a_sub_agent_cannot_call_another_one():
    message = "tool 'deeper' returned Call.*Only an environment's step restarts or calls sub-agents"
    with pytest.raises(RunError, match=message):
        scripted("I ask.", ASKS % ("deeper", ""), environment=Deeper)


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (Turn("x", restart=user("y")), "expected restart without observation, done and calls"),
        (Turn(done=True, restart=user("y")), "expected restart without observation"),
        (Turn(restart=user("y"), calls=[Call(user("z"))]), "expected restart without observation"),
        (Turn(done=True, calls=[Call(user("z"))]), "and calls without done"),
        (Turn(restart=[{"role": "user"}]), "restart with .*; expected a list of messages"),
        (Turn(calls=[user("z")]), r"the call \[.*; expected Call\(messages, tools=\[functions\]\)"),
        (Turn(calls=[Call([])]), r"expected Call\(messages"),
        (Turn(calls=[Call(user("z"), ["python"])]), r"expected Call\(messages"),
        (Turn(calls=[Call(user("z"), None)]), r"expected Call\(messages"),  # type: ignore[arg-type]
        (Turn(calls=None), r"the call None; expected Call\(messages"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_together_is_refused_in_a_sentence(turn, message):
    class Odd(Asks):
        def step(self, messages: Any) -> Turn:
            return turn

    with pytest.raises(RunError, match=f"Odd.step returned .*{message}"):
        scripted("I ask.", environment=Odd)


class Delegates(Echo):
    """Has two sub-agents write before each turn; threads of tools end in any order."""

    def step(self, messages: Any) -> Turn:
        threading.Event().wait(0.01 * (len(messages[0]["content"]) % 3))
        turn = super().step(messages)
        calls = [Call(user(f"{n}*7=")) for n in range(2)]
        return turn if turn.done else dataclasses.replace(turn, observation="", calls=calls)


def test_sub_agents_draw_the_same_in_every_call_and_differ_from_one_another(model):
    one = held(model, Delegates)
    rows = [row for rollout in one for row in rollout]
    again = [row for rollout in held(model, Delegates) for row in rollout]
    assert [(r.tokens, r.logprobs, r.turns) for r in rows] == [
        (r.tokens, r.logprobs, r.turns) for r in again
    ]
    calls = [row.tokens.tolist() for row in rows if row.began == "call"]
    assert len({*map(tuple, calls)}) > len(calls) / 2 > 5
    alone = [row for rollout in held(model, Delegates, problems=PROBLEMS[3:5]) for row in rollout]
    assert [row.tokens for row in alone] == [row.tokens for g in one[6:10] for row in g]


NAMED = """
from rlobj import Call, Turn

def user(text):
    return [{"role": "user", "content": text}]

class Named:
    tools = []

    def reset(self, problem):
        self.turns = 0

    def step(self, messages):
        self.turns += 1
        if self.turns == 1:
            return Turn(restart=user("again"))
        if self.turns == 2:
            return Turn(calls=[Call(user("first"), self.tools)])
        return Turn(done=True, correct=messages[0]["content"] == "again")

class WithTools(Named):
    tools = [print]
"""


def test_an_environment_that_is_named_restarts_and_calls_sub_agents_without_tools(tmp_path):
    file = tmp_path / "named.py"
    file.write_text(NAMED)
    rows, read = scripted("one", "two", "sub", "end", environment=None, target=f"{file}:Named")
    assert [row.began for row in rows] == ["", "restart", "call"]
    assert rows[1].turns[-1].correct is True
    assert read[1].endswith("<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n")
    assert rows[1].turns[0].observation == "sub"
    with pytest.raises(RunError, match=r"WithTools\.step returned a call with tools"):
        scripted("one", "two", environment=None, target=f"{file}:WithTools")


def test_the_calculator_of_the_page_is_compacted_after_three_turns(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "conversations.md").read_text(encoding="utf-8")
    file = tmp_path / "compacting.py"
    file.write_text("# compacting.py" + page.partition("# compacting.py")[2].partition("```")[0])
    asked = ["?1*2;", "?3*4;", "?37*46;", "?5*6;", "#1702"]
    problem = Problem("1", "37*46=", "1702")
    given = {"environment": None, "target": f"{file}:Compacting", "problem": problem}
    rows, read = scripted(*asked, **given)
    assert [[turn.text for turn in row.turns] for row in rows] == [asked[:3], asked[3:]]
    assert [row.began for row in rows] == ["", "restart"]
    assert "user\n37*46=<|im_end|>" in read[0]
    assert "user\n37*46=1702;<|im_end|>" in read[3]
    assert "?37*46;" not in read[3]
    assert rows[1].turns[-1].correct is True
