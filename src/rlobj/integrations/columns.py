"""The check at the start of a run that a trainer has every column that the objective reads."""

from collections.abc import Collection, Mapping

from rlobj.base.errors import ConfigError
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import score_columns

_WHOLE = "It needs the whole distribution of each token; `rlobj train` computes it"
_OF_TURNS = "It is of conversations, which `rlobj train` and TRL have"
_OF_SCORE = "It is of a score; `rlobj train` has scores, and TRL those of frozen models"
_OF_VALUE = "It is of a value that is trained, as `rlobj train` does; take another advantage here"
_OWN = "It is a column of your own: pass it in a loop of your own, as TokenBatch(columns={...})"
_ADVICE = {
    "proxy_logprobs": _WHOLE,
    "collision": _WHOLE,
    "old_collision": _WHOLE,
    "sampler_logprobs": "It must come from a sampler that returns log-probs, such as vLLM",
    "ref_logprobs": "It needs a reference model",
    "staleness": "It is of tokens that older weights drew; `rlobj train` has it",
    "turn": _OF_TURNS,
    "turn_reward": _OF_TURNS,
}
"""What would provide a column that a trainer lacks; a sentence."""


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
    advice_of = (
        dict.fromkeys(score_columns(objective.scores), _OF_SCORE)
        | dict.fromkeys(objective.divergences, _WHOLE)
        | {f"{objective.critic}_{of}": _OF_VALUE for of in ("value", "new_value", "bootstrap")}
        | _ADVICE
        | {**(advice or {})}
    )
    missing = sorted(objective.needs.ever - {"logprobs", *provided})
    if missing:
        lines = [
            f"{trainer} does not provide the column '{column}', which {objective.reader(column)} "
            f"reads. {advice_of.get(column, _OWN)}"
            for column in missing
        ]
        raise ConfigError("\n".join(lines))
