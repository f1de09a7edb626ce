"""The names of the rule language: columns and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

_RAW = {"reference": "ref_logprobs", "ref": "ref_logprobs", "proxy": "proxy_logprobs"}
"""The TokenBatch columns of log-probs that have a name of their own, by score."""


def score_column(score: str) -> str:
    """The TokenBatch column with the log-probs of a score."""
    return _RAW.get(score, f"{score}_logprob")


def score_columns(scores: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The columns of rules that scores give, each with the TokenBatch columns that it reads.

    Example:
        >>> score_columns(["teacher"])["teacher_gap"]
        ('teacher_logprob', 'logprobs')
    """
    return {
        f"{score}_{kind}": reads
        for score in scores
        for kind, reads in {
            "logprob": (score_column(score),),
            "prob": (score_column(score),),
            "gap": (score_column(score), "logprobs"),
            "entropy": (f"{score}_entropy",),
            "kl": (f"{score}_kl",),
        }.items()
    }


COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "prob": ("π, probability of the token under the current policy", ("logprobs",)),
    "logprob": ("l = log π, nats", ("logprobs",)),
    "surprisal": ("−log π, nats", ("logprobs",)),
    "entropy": ("H of the current policy at the token's position, nats", ("entropy",)),
    "old_prob": ("π_old, probability under the rollout's policy", ("old_logprobs",)),
    "old_logprob": ("l0 = log π_old, nats", ("old_logprobs",)),
    "old_surprisal": ("−log π_old, nats", ("old_logprobs",)),
    "old_entropy": ("H of the rollout's policy, nats", ("old_entropy",)),
    "advantage": ("A, the token's advantage", ()),
    "reward": ("R, the response's reward; reward('name') is one of several", ("rewards",)),
    "ratio": ("r = π / π_old", ("logprobs", "old_logprobs")),
    "length": ("trained tokens in the response", ()),
    "staleness": ("steps between the weights that sampled and those that train", ("staleness",)),
    "position": ("index in the response, from 0", ()),
    "turn": ("turn of the conversation, from 0", ("turn",)),
    "turn_position": ("index in the turn, from 0", ("turn",)),
    "turn_reward": ("reward of the turn; those of a response add up to R", ("turn", "turn_reward")),
    "covariance": ("(A − mean A)·(l − mean l), means over the update's tokens", ("logprobs",)),
    "proxy_gap": ("l_proxy − l, nats", ("proxy_logprobs", "logprobs")),
    "ref_gap": ("l_ref − l, nats", ("ref_logprobs", "logprobs")),
    "reference_logprob": ("logprob of the score `reference`; see scores", ("ref_logprobs",)),
    "reference_prob": ("prob of the score `reference`; see scores", ("ref_logprobs",)),
    "reference_gap": ("gap of the score `reference`; see scores", ("ref_logprobs", "logprobs")),
    "reference_entropy": ("entropy of the score `reference`; see scores", ("reference_entropy",)),
    "reference_kl": ("KL(π ‖ π_reference) over the vocabulary; see scores", ("reference_kl",)),
    "sampler_gap": ("l0 − l_sampler, nats", ("old_logprobs", "sampler_logprobs")),
    "collision": ("Σ π² over the vocabulary", ("collision",)),
    "old_collision": ("Σ π_old², of the rollout's policy", ("old_collision",)),
    "gradient_norm": ("|A|·sqrt(1 − 2π + Σ π²), of the logits", ("logprobs", "collision")),
}
"""Meaning of each column, and the TokenBatch columns that it needs."""

LEVELS = {
    **dict.fromkeys(("reward", "length", "staleness"), "response"),
    **dict.fromkeys(("turn", "turn_reward"), "turn"),
}
"""Columns with one value per response or per turn; all others have one per token."""

FUNCTIONS = {
    "abs": ("number",),
    "exp": ("number",),
    "log": ("number",),
    "sqrt": ("number",),
    "sign": ("number",),
    "minimum": ("number", "number"),
    "maximum": ("number", "number"),
    "clip": ("number", "low", "high"),
    "when": ("rule", "number", "number"),
}
"""Functions and their arguments."""

ColumnLevel = Literal["token", "turn", "response"]
"""What a column of one's own has one value for."""
_DECLARED: ContextVar[Mapping[str, ColumnLevel]] = ContextVar("declared")
_NAMED: ContextVar[Mapping[str, Any]] = ContextVar("named")


@contextmanager
def declared(
    columns: Mapping[str, ColumnLevel], named: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Within this context, text may read these names.

    Args:
        columns: an objective's own columns and those of its scores, each with its level.
        named: expressions by their names: an objective's `let`.
    """
    tokens = _DECLARED.set(columns), _NAMED.set(named or {})
    try:
        yield
    finally:
        _DECLARED.reset(tokens[0])
        _NAMED.reset(tokens[1])


def declared_columns() -> Mapping[str, ColumnLevel]:
    """The columns of `TokenBatch(columns=...)` that text may read, each with its level."""
    return _DECLARED.get({})


def named_expressions() -> Mapping[str, Any]:
    """The expressions that text may read by a name."""
    return _NAMED.get({})


def levels_of(names: Iterable[str]) -> dict[str, ColumnLevel]:
    """Columns with one value per token."""
    return dict.fromkeys(names, "token")


def readable_columns(columns: Any) -> dict[str, ColumnLevel]:
    """The columns of a setting, each with its level; what is wrong in it is left out."""
    listed = ((name, "token") for name in columns) if isinstance(columns, list | tuple) else ()
    levels: tuple[ColumnLevel, ...] = get_args(ColumnLevel)
    pairs: Any = columns.items() if isinstance(columns, Mapping) else listed
    return {name: level for name, level in pairs if isinstance(name, str) and level in levels}
