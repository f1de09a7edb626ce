"""The names of the rule language: columns and functions, which `columns.toml` lists."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

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
        }.items()
    }


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (meaning, tuple(reads)) for name, (meaning, *reads) in _TABLE["columns"].items()
}
"""Meaning of each column, and the TokenBatch columns that it needs."""

LEVELS = {"reward": "response", "length": "response", "turn": "turn", "turn_reward": "turn"}
"""Columns with one value per response or per turn; all others have one per token."""

FUNCTIONS = {name: tuple(given.split()) for name, given in _TABLE["functions"].items()}
"""Functions and their arguments."""

_DECLARED: ContextVar[tuple[str, ...]] = ContextVar("declared", default=())


@contextmanager
def declared(names: tuple[str, ...]) -> Iterator[None]:
    """Within this context, text may read these columns: an objective's own `columns`."""
    token = _DECLARED.set(names)
    try:
        yield
    finally:
        _DECLARED.reset(token)


def declared_columns() -> tuple[str, ...]:
    """The columns of `TokenBatch(columns=...)` that text may read."""
    return _DECLARED.get()
