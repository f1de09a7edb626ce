"""What may change when a run is resumed."""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.paths import path_of
from rlobj.settings.presets import difference
from rlobj.settings.trust import named_code

RESUMABLE_SETTINGS = (
    "training.steps",
    "training.strategy",
    "training.offload",
    "training.micro_batch_tokens",
    "training.packed",
    "training.shared_prompts",
    "training.skip_inactive",
    "training.gradient_checkpointing",
    "training.threads",
    "training.hang_timeout",
    "training.max_skipped",
    "training.stop_on",
    "model.lora.sync",
    "environment.workers",
    "environment.max_failures",
    "rewards.max_failures",
    "rewards.concurrency",
    "rewards.device",
    "rewards.batch_tokens",
    "sampling.batch_tokens",
    "sampling.vllm",
    "sampling.server",
    "sampling.max_logprob_gap",
    "scores.*.server",
    "checkpoint",
    "output",
)
"""Settings that do not change the results of the steps already asked for, and `training.steps`. A
name also stands for all settings below it."""
RECORDED_SETTINGS = (
    "training.learning_rate",
    "training.max_grad_norm",
    "training.old_logprobs",
    "scores.*.learning_rate",
    "scores.*.max_grad_norm",
    "evaluation",
    "sampling.engine",
    "sampling.dynamic",
    "sampling.in_flight",
    "sampling.max_staleness",
)
"""Settings that change the results of later steps: the run records each change."""


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
    may_change = (*RESUMABLE_SETTINGS, *RECORDED_SETTINGS)
    if wrong := [name for name in changes if not _within(name.rpartition(" ")[2], *may_change)]:
        raise ConfigError(
            f"{run} is resumed with the settings it was started with. Leave out: "
            f"{', '.join(wrong)}. A new run from its checkpoint may have others.\n"
            f"What may change: the number of processes, {', '.join(may_change)}"
        )


def _within(path: str, *names: str) -> bool:
    """Whether a setting is one of those, or in a section among them."""
    return any(fnmatch(f"{path}.", f"{name}.*") for name in names)


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings (before, now) by name that differ."""
    return {path: (a, b) for path, a, b in difference(before, now)}


def recorded(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Those of the changed settings that may change results."""
    return {path: pair for path, pair in changes.items() if not _within(path, *RESUMABLE_SETTINGS)}


def code_digest(settings: Mapping[str, Any], *sections: str) -> str:
    """The digest of the files, also of imported modules, that sections of settings name.

    Modules that these files import are not in it.
    """
    targets = named_code({section: settings.get(section) for section in sections})
    named = [target.rpartition(":")[0] for target in targets]
    files = [path_of(getattr(sys.modules.get(name), "__file__", None) or name) for name in named]
    digest = hashlib.sha256()
    for file in sorted({file for file in files if file.is_file()}):
        digest.update(f"{file}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]
