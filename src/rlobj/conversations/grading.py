"""The grades of conversations: what graders are told, and what becomes of those that were cut."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rlobj.conversations.environment import ENDS, LIMITS
from rlobj.data import Problem
from rlobj.rewards import Graded, Grader
from rlobj.rewards.kinds import TURNS
from rlobj.samplers.response import Response, ToolUse, TurnRecord, rollouts_of, whole


def grades_of(
    grader: Grader,
    responses: Sequence[Response],
    problems: Sequence[Problem],
    at_limit: float | str,
) -> list[Graded]:
    """The grades of rollouts, from one call of the grader.

    Args:
        grader: open.
        responses: as they were sampled: the rows of each rollout one after another.
        problems: which they answer.
        at_limit: of those that were cut; see `EnvironmentSettings.at_limit`.

    Returns:
        One for each rollout.
    """
    rollouts = [whole(rows) for rows in rollouts_of(responses)]
    asked = [p for p, row in zip(problems, responses, strict=True) if not row.began]
    texts = [rollout.text for rollout in rollouts]
    complete = [with_turns(*pair) for pair in zip(asked, rollouts, strict=True)]
    return [
        limited(grade, rollout.turns[-1].end if rollout.turns else "done", at_limit)
        for rollout, grade in zip(rollouts, grader.score(texts, complete), strict=True)
    ]


def with_turns(problem: Problem, response: Response) -> Problem:
    """A problem as graders get it: the column `turns` has the turns of the conversation."""
    turns = [*map(described, response.turns)]
    return replace(problem, extra={**problem.extra, TURNS: turns}) if turns else problem


def calls_of(turn: TurnRecord) -> Sequence[ToolUse]:
    """The calls of tools in a turn; the last use of a broken one is that the environment failed."""
    return turn.uses[:-1] if turn.end == "broken" else turn.uses


def described(turn: TurnRecord) -> dict[str, Any]:
    """A turn as plain data, for reward functions and files."""
    return {
        "text": turn.text,
        "observation": turn.observation,
        "reward": turn.reward,
        "correct": turn.correct,
        "calls": len(calls_of(turn)),
        "errors": sum(bool(use.error) for use in calls_of(turn)),
        "seconds": sum(use.seconds for use in calls_of(turn)),
        "end": turn.end,
        "uses": [asdict(use) for use in turn.uses],
        **({"row": turn.row, "began": turn.began} if turn.row else {}),
    }


def turn_of(line: Mapping[str, Any]) -> TurnRecord:
    """A turn from what `described` gave, without the numbers of its tokens."""
    return TurnRecord(
        size=0,
        text=str(line["text"]),
        observed=array("i"),
        observation=str(line["observation"]),
        reward=float(line["reward"]),
        correct=line["correct"],
        uses=tuple(ToolUse(**use) for use in line.get("uses", ())),
        end=line["end"],
        row=line.get("row", 0),
        began=line.get("began", ""),
    )


def limited(grade: Graded, end: str, at_limit: float | str) -> Graded:
    """The grade of a response whose conversation may have been cut.

    Args:
        grade: as if it had not been.
        end: why it ended; see `TurnRecord.end`.
        at_limit: see `EnvironmentSettings.at_limit`.
    """
    if end not in ENDS or (end in LIMITS and at_limit == "graded"):
        return grade
    if end not in LIMITS or at_limit == "undecided":
        return Graded(math.nan, None, ENDS[end], None, (math.nan,) * len(grade.rewards))
    return replace(grade, reward=float(at_limit), correct=False, reason=ENDS[end])


def turn_rewards(turns: Sequence[TurnRecord], reward: float, weight: float) -> tuple[float, ...]:
    """The rewards of the turns of a response; they add up to its reward.

    What the environment gave for a turn counts for this turn. All else, such as the verdict on the
    last message or a length penalty, counts for the last one.

    Args:
        turns: of the response.
        reward: of the response; NaN if it is undecided.
        weight: of the environment's rewards in the response's; 0 = they are not in it.
    """
    early = [weight * turn.reward for turn in turns[:-1]]
    return (*early, reward - math.fsum(early)) if turns else ()


def sums(responses: Sequence[Response]) -> dict[str, float]:
    """Sums over conversations, by what they count."""
    turns = [turn for response in responses for turn in response.turns]
    uses = [use for turn in turns for use in calls_of(turn)]
    ends = [response.turns[-1].end for response in responses if response.turns]
    return {
        "turns": len(turns),
        "calls": len(uses),
        "errors": sum(bool(use.error) for use in uses),
        "timeouts": sum(use.error == "timeout" for use in uses),
        "malformed": sum(use.error == "malformed" for use in uses),
        "exceptions": sum(use.error.startswith("exception") for use in uses),
        "seconds": sum(use.seconds for use in uses),
        "with_calls": sum(any(map(calls_of, response.turns)) for response in responses),
        **{f"at_{name}": sum(end == name for end in ends) for name in ENDS},
    }
