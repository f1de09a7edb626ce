"""The columns of rules, one row for each, and the names that an objective adds: its Scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, get_args


class Level(IntEnum):
    """What an expression has one value for."""

    UPDATE = 0
    ROLLOUT = 1
    """All rows of a rollout have the same value; and so have the rollouts of a group."""
    RESPONSE = 2
    """A row of a rollout."""
    TURN = 3
    """A turn of a response; aggregates by the group's turns of one number, too."""
    TOKEN = 4


class RuleColumn(NamedTuple):
    """A column of rules.

    Attributes:
        meaning: in words.
        reads: the TokenBatch columns that it needs.
        value: its value on the rows of a `Frame`; None = `of_policy` finds it by the name.
        level: what it has one value for.
    """

    meaning: str
    reads: tuple[str, ...]
    value: Callable[[Any], Any] | None = None
    level: Level = Level.TOKEN


def _covariance(frame: Any) -> Any:
    from rlobj.objectives import statistics

    advantages, logprobs = frame.batch("advantages"), frame.batch("logprobs")
    mean_advantage = statistics.exact_mean(advantages, frame.decided, frame.comm)
    mean_logprob = statistics.exact_mean(logprobs, frame.decided, frame.comm)
    return (advantages - mean_advantage) * (logprobs - mean_logprob)


def _gradient_norm(frame: Any) -> Any:
    from rlobj.objectives.functional import gradient_norm

    return gradient_norm(*map(frame.batch, ("logprobs", "collision", "advantages")))


def _ratio(frame: Any) -> Any:
    from rlobj.objectives.functional import log_ratio

    return log_ratio(frame.batch("logprobs"), frame.batch("old_logprobs")).exp()


def _turn_position(frame: Any) -> Any:
    positions, table = frame.table.positions, frame.table
    return positions - positions[table.turn_starts][table.turns]


COLUMNS = {
    "prob": RuleColumn("π, probability of the token under the current policy", ("logprobs",)),
    "logprob": RuleColumn("l = log π, nats", ("logprobs",)),
    "surprisal": RuleColumn("−log π, nats", ("logprobs",)),
    "entropy": RuleColumn("H of the current policy at the token's position, nats", ("entropy",)),
    "old_prob": RuleColumn("π_old, probability under the rollout's policy", ("old_logprobs",)),
    "old_logprob": RuleColumn("l0 = log π_old, nats", ("old_logprobs",)),
    "old_surprisal": RuleColumn("−log π_old, nats", ("old_logprobs",)),
    "old_entropy": RuleColumn("H of the rollout's policy, nats", ("old_entropy",)),
    "advantage": RuleColumn("A, the token's advantage", (), lambda f: f.batch("advantages")),
    "reward": RuleColumn(
        "R, the response's reward; reward('name') is one of several",
        ("rewards",),
        lambda frame: frame.table.reward().masked_fill(~frame.decided_responses, 0),
        Level.ROLLOUT,
    ),
    "ratio": RuleColumn("r = π / π_old", ("logprobs", "old_logprobs"), _ratio),
    "length": RuleColumn(
        "trained tokens in the response, in all rows of a rollout",
        (),
        lambda frame: frame.of_rollout(frame.table.lengths),
        Level.ROLLOUT,
    ),
    "rollout_rows": RuleColumn(
        "rows of the rollout; 1 = it is one response",
        (),
        lambda frame: frame.of_rollout(frame.table.lengths.new_ones(frame.table.lengths.shape)),
        Level.ROLLOUT,
    ),
    "staleness": RuleColumn(
        "steps between the weights that drew the token and those that train", ("staleness",)
    ),
    "position": RuleColumn("index in the response, from 0", (), lambda f: f.table.positions),
    "turn": RuleColumn(
        "turn of the conversation, from 0",
        ("turn",),
        lambda frame: frame.table.turn_numbers[frame.table.turn_starts],
        Level.TURN,
    ),
    "turn_position": RuleColumn("index in the turn, from 0", ("turn",), _turn_position),
    "turn_reward": RuleColumn(
        "reward of the turn; those of a response add up to R",
        ("turn", "turn_reward"),
        lambda frame: frame.batch("turn_reward")[frame.table.turn_starts],
        Level.TURN,
    ),
    "covariance": RuleColumn(
        "(A − mean A)·(l − mean l), means over the update's tokens", ("logprobs",), _covariance
    ),
    "proxy_gap": RuleColumn("l_proxy − l, nats", ("proxy_logprobs", "logprobs")),
    "ref_gap": RuleColumn("l_ref − l, nats", ("ref_logprobs", "logprobs")),
    "sampler_gap": RuleColumn(
        "l0 − l_sampler, nats",
        ("old_logprobs", "sampler_logprobs"),
        lambda frame: frame.batch("old_logprobs") - frame.batch("sampler_logprobs"),
    ),
    "collision": RuleColumn("Σ π² over the vocabulary", ("collision",)),
    "old_collision": RuleColumn("Σ π_old², of the rollout's policy", ("old_collision",)),
    "gradient_norm": RuleColumn(
        "|A|·sqrt(1 − 2π + Σ π²), of the logits", ("logprobs", "collision"), _gradient_norm
    ),
}
"""The columns of every table."""

_LOGPROBS = {"": "logprobs", "old": "old_logprobs", "proxy": "proxy_logprobs"}
_LOGPROBS |= dict.fromkeys(("reference", "ref"), "ref_logprobs")
"""The TokenBatch columns of log-probs that have a name of their own, by policy."""


def score_column(score: str) -> str:
    """The TokenBatch column with the log-probs of a score."""
    return _LOGPROBS.get(score, f"{score}_logprob")


def of_policy(frame: Any, name: str) -> Any:
    """A column of the TokenBatch, or one that follows from the log-probs of a policy: old_prob."""
    policy, _, kind = name.rpartition("_")
    if name in frame.columns_read or kind not in ("logprob", "prob", "surprisal", "gap"):
        return frame.batch(name)
    logprobs = frame.batch(score_column(policy))
    if kind == "gap":
        return logprobs - frame.batch("logprobs")
    if kind == "surprisal":
        return -logprobs
    return logprobs.exp() if kind == "prob" else logprobs


def score_columns(scores: Iterable[str]) -> dict[str, RuleColumn]:
    """The columns of rules that scores give.

    Example:
        >>> score_columns(["teacher"])["teacher_gap"].reads
        ('teacher_logprob', 'logprobs')
    """
    return {
        f"{score}_{kind}": RuleColumn(meaning.format(score), reads)
        for score in scores
        for kind, meaning, reads in (
            ("logprob", "logprob of the score `{}`; see scores", (score_column(score),)),
            ("prob", "prob of the score `{}`; see scores", (score_column(score),)),
            ("gap", "gap of the score `{}`; see scores", (score_column(score), "logprobs")),
            ("entropy", "entropy of the score `{}`; see scores", (f"{score}_entropy",)),
            ("kl", "KL(π ‖ π_{}) over the vocabulary; see scores", (f"{score}_kl",)),
        )
    }


COLUMNS |= score_columns(["reference"])

ColumnLevel = Literal["token", "turn", "response", "rollout"]
"""What a column of one's own has one value for."""


@dataclass(frozen=True)
class Scope:
    """The names that expressions may read besides those of every table.

    Attributes:
        columns: an objective's own columns and those of its scores, each with its level.
        named: expressions by their names: an objective's `let`.
    """

    columns: Mapping[str, ColumnLevel] = field(default_factory=dict)
    named: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Any, scores: Any, values: Iterable[str] = ()) -> Scope:
        """The scope of two settings of an objective; what is wrong in them is left out.

        Each value NAME gives NAME_value and NAME_return.
        """
        declared = (
            columns if isinstance(columns, Mapping) else dict.fromkeys(_texts(columns), "token")
        )
        known: dict[str, Any] = {
            **declared,
            **dict.fromkeys(score_columns(_texts(scores)), "token"),
            **{f"{name}_{kind}": "token" for name in values for kind in ("value", "return")},
        }
        return cls({name: level for name, level in known.items() if level in get_args(ColumnLevel)})


def _texts(names: Any) -> list[str]:
    """The texts of a list; [] for all else."""
    entries = names if isinstance(names, list | tuple) else ()
    return [name for name in entries if isinstance(name, str)]
