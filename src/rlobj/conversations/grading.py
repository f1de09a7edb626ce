"""The grades of conversations: what graders are told, and what becomes of those that were cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rlobj.conversations.environment import ENDS, LIMITS, ToolUse, TurnRecord
from rlobj.data import Problem
from rlobj.rewards import Graded
from rlobj.rewards.kinds import TURNS
from rlobj.samplers import Sample


def with_turns(problem: Problem, turns: Sequence[Mapping[str, Any]]) -> Problem:
    """The problem as graders get it: its column `turns` has the turns of the conversation."""
    return replace(problem, extra={**problem.extra, TURNS: [*turns]}) if turns else problem


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
    }


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


def turn_rewards(sample: Sample, reward: float, weight: float) -> tuple[float, ...]:
    """The rewards of the turns of a response; they add up to its reward.

    What the environment gave for a turn counts for this turn. All else, such as the verdict on the
    last message or a length penalty, counts for the last one.

    Args:
        sample: the response.
        reward: of the response; NaN = undecided.
        weight: of the environment's rewards in the response's; 0 = they are not in it.
    """
    early = [weight * turn.reward for turn in sample.turns[:-1]]
    return (*early, reward - math.fsum(early)) if sample.turns else ()


def sums(samples: Sequence[Sample]) -> dict[str, float]:
    """Sums over conversations, by what they count."""
    turns = [turn for sample in samples for turn in sample.turns]
    uses = [use for turn in turns for use in calls_of(turn)]
    ends = [sample.turns[-1].end for sample in samples if sample.turns]
    return {
        "turns": len(turns),
        "calls": len(uses),
        "errors": sum(bool(use.error) for use in uses),
        "timeouts": sum(use.error == "timeout" for use in uses),
        "seconds": sum(use.seconds for use in uses),
        "with_calls": sum(any(map(calls_of, sample.turns)) for sample in samples),
        **{f"at_{name}": sum(end == name for end in ends) for name in ENDS},
    }
