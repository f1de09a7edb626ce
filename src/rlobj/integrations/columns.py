"""The check at the start of a run that a trainer has every column that the objective reads."""

from collections.abc import Collection, Mapping

from rlobj.base.errors import ConfigError
from rlobj.objectives.objective import Objective

_OWN = "It is a column of your own: pass it in a loop of your own, as TokenBatch(columns={...})"


def check_columns(
    objective: Objective,
    provided: Collection[str],
    trainer: str,
    advice: Mapping[str, str] | None = None,
) -> None:
    """Refuse an objective that reads a column which the trainer does not provide.

    Args:
        objective: of the run.
        provided: the TokenBatch columns that the trainer provides; "logprobs" need not be named.
        trainer: its name, for the message.
        advice: what would provide a column, by column; a sentence; it replaces the general advice.

    Raises:
        ConfigError: names each missing column, what reads it, and what would provide it.
    """
    advice = dict.fromkeys(objective.columns, _OWN) | {**(advice or {})}
    missing = sorted(objective.needs.ever - {"logprobs", *provided})
    if missing:
        lines = [
            f"{trainer} does not provide the column '{column}', which {objective.reader(column)} "
            f"reads. {advice.get(column, '`rlobj train` has it')}"
            for column in missing
        ]
        raise ConfigError("\n".join(lines))
