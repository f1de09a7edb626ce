"""The rule language in Python: its columns, its functions, and the methods of numbers and rules.

    prob < 0.002                               a rule, true or false per token
    (advantage > 0) & (prob < 0.002)           &, | and ~ (in text also: and, or, not)
    0.2 + 0.1 * entropy ** 2                   + - * / **
    entropy.top(0.2, within=advantage > 0)     the largest 20% of a population
    length.bottom(0.5, of="response")          half of the responses: the shortest ones
    surprisal.bottom_to_mean(0.5)              the smallest values, up to a mean of 0.5
    entropy.quantile(0.8)                      one number: the ceil(q·n)-th smallest value
    length.rank(by="group")                    0 for a group's shortest response, 1 for its longest
    (covariance > 1).sample(5, seed=0)         a random subset of a rule's tokens
    reward.mean(by="group")                    one number for each group: the pass rate
    (prob < 0.002).any(by="response")          true on all tokens of a response with such a token
    (logprob - old_logprob).suffix_sum()       the sum from the token to the response's end
    ratio.prefix_min()                         the smallest one from the response's start on
    exp(x), log(x), sqrt(x), sign(x), abs(x), minimum(x, y), maximum(x, y), clip(x, low, high)
    when(surprisal.top(0.1), "W", 1)           a number per token; W is a controller's value

    sampler_known                              the sampler reported the token's log-prob
    turn_reward.suffix_sum()                   the rewards of this turn and of those after it
    turn_reward.mean(by="group_turn")          the mean over the group's turns of this number

Each population is that of the update, of a group, of a position in a group's responses, of a
rollout, of a response (which is a row of a rollout), of a turn, or of a group's turns of one
number: by="update", "group", "position", "rollout", "response", "turn" or "group_turn". by="state"
is those of a group that have the same value in the column `state` of one's own, which holds whole
numbers; a negative one is in none. A token on which a number is undefined belongs to no population.
"""

from collections.abc import Callable
from typing import Any

from rlobj.objectives.rules.columns import COLUMNS, ColumnLevel, Level
from rlobj.objectives.rules.nodes import (
    SAMPLER_KNOWN,
    Column,
    Function,
    Number,
    Rule,
    SamplerKnown,
    When,
    as_number,
    as_rule,
)


def _function(name: str, *values: Any) -> Number:
    return Function(name, tuple(map(as_number, values)))


def exp(number: Any) -> Number:
    """e^x."""
    return _function("exp", number)


def log(number: Any) -> Number:
    """The natural logarithm of x."""
    return _function("log", number)


def sqrt(number: Any) -> Number:
    """√x."""
    return _function("sqrt", number)


def sign(number: Any) -> Number:
    """−1, 0 or 1."""
    return _function("sign", number)


def minimum(left: Any, right: Any) -> Number:
    """The smaller of two numbers, token by token."""
    return _function("minimum", left, right)


def maximum(left: Any, right: Any) -> Number:
    """The larger of two numbers, token by token."""
    return _function("maximum", left, right)


def clip(number: Any, low: Any, high: Any) -> Number:
    """min(max(x, low), high)."""
    return _function("clip", number, low, high)


def when(rule: Rule | str, then: Any, otherwise: Any) -> Number:
    """A number per token: `then` on tokens of the rule, `otherwise` on all others.

    `then` and `otherwise` are numbers, expressions or text; the text "W" is the controller W.

    Example:
        >>> from rlobj import surprisal
        >>> str(when(surprisal.top(0.1), "W", 1))
        'when(surprisal.top(0.1), W, 1)'
    """
    return When(as_rule(rule, "when"), as_number(then), as_number(otherwise))


def _absolute(number: Any) -> Number:
    """|x|. In Python, `abs` does it."""
    return _function("abs", number)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": _absolute,
    **{f.__name__: f for f in (exp, log, sqrt, sign, minimum, maximum, clip, when)},
}
"""The functions of the language, whose text has the arguments of these."""
NAMES = (*COLUMNS, *FUNCTIONS, SAMPLER_KNOWN)
"""Names that a column of one's own cannot have."""


def column(name: str, level: ColumnLevel = "token") -> Number:
    """One of the columns of `TokenBatch(columns=...)`, by name.

    Args:
        name: as the objective declares it in `columns`.
        level: what it has one value for, as there.

    Example:
        >>> str(column("stage") > 1)
        'stage > 1'
    """
    return Column(name, Level[level.upper()])


prob, logprob, surprisal, entropy = map(Column, ("prob", "logprob", "surprisal", "entropy"))
old_prob, old_logprob = Column("old_prob"), Column("old_logprob")
old_surprisal, old_entropy = Column("old_surprisal"), Column("old_entropy")
advantage, reward, ratio = map(Column, ("advantage", "reward", "ratio"))
length, position, covariance = map(Column, ("length", "position", "covariance"))
rollout_rows = Column("rollout_rows")
staleness = Column("staleness")
proxy_gap, ref_gap, sampler_gap = map(Column, ("proxy_gap", "ref_gap", "sampler_gap"))
collision, old_collision = Column("collision"), Column("old_collision")
gradient_norm, sampler_known = Column("gradient_norm"), SamplerKnown()
turn, turn_position, turn_reward = map(Column, ("turn", "turn_position", "turn_reward"))
