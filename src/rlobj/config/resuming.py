"""What may change when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlobj.base.errors import ConfigError

RESUMABLE_SETTINGS = (
    "training.steps",
    "training.strategy",
    "training.micro_batch_tokens",
    "training.packed",
    "training.skip_inactive",
    "training.balance",
    "training.gradient_checkpointing",
    "training.threads",
    "training.max_skipped",
    "training.stop_on",
    "rewards.max_failures",
    "rewards.concurrency",
    "sampling.batch_tokens",
    "sampling.vllm",
    "sampling.server",
    "sampling.max_logprob_gap",
    "checkpoint",
    "output",
)
"""Settings that do not change the results of the steps already asked for, and `training.steps`."""


def refuse_changes(run: Path | str, changes: Iterable[str]) -> None:
    """Check that every changed setting may change when a run is resumed.

    Args:
        run: the run, for the message.
        changes: dotted names of settings. The option that set one may stand before it, as in
            `--set seed`.

    Raises:
        ConfigError: a setting that would change the run's results; the message lists all of them.

    Example:
        >>> refuse_changes("runs/stapo", ["training.steps", "checkpoint.every"])
    """
    allowed = tuple(f"{name}." for name in RESUMABLE_SETTINGS)
    wrong = [name for name in changes if not f"{name.rpartition(' ')[2]}.".startswith(allowed)]
    if wrong:
        raise ConfigError(
            f"{run} is resumed with the settings it was started with. Only the number of processes "
            "and settings that do not change results may change: "
            f"{', '.join(RESUMABLE_SETTINGS)}. Leave out: {', '.join(wrong)}"
        )
