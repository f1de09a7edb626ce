"""The check at the start of a run that a trainer has every column that the objective reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rlobj.base.errors import ConfigError
from rlobj.base.yaml import packaged_table
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import score_columns

_ADVICE = packaged_table("rlobj.integrations", "columns.yaml")


def check_columns(
    objective: Objective,
    provided: Collection[str],
    trainer: str,
    advice: Mapping[str, str] | None = None,
    preset: str | None = None,
) -> None:
    """Refuse an objective that reads a column which the trainer does not provide.

    Args:
        objective: of the run.
        provided: the TokenBatch columns that the trainer provides; "logprobs" need not be named.
        trainer: its name, for the message.
        advice: what would provide a column, by column; a sentence; it replaces the general advice.
        preset: the name of the objective's preset, for the message.

    Raises:
        ConfigError: names each missing column, what reads it, and what would provide it.
    """
    of_scores = dict.fromkeys(score_columns(objective.scores), _ADVICE["of_scores"])
    known = {**of_scores, **_ADVICE["columns"], **(advice or {})}
    missing = sorted(objective.needs.ever - {"logprobs", *provided})
    if missing:
        whose = f" of the preset {preset}" if preset else ""
        lines = [
            f"{trainer} does not provide the column '{column}', which "
            f"{objective.reader(column)}{whose} reads. {known.get(column, _ADVICE['own'])}"
            for column in missing
        ]
        raise ConfigError("\n".join(lines))
