"""Problems of reasoning-gym (arXiv:2505.24760), made on this machine.

data: {source: "reasoning-gym:countdown", gym: {size: 5000, max_numbers: 4}}

The keys of `data.gym` are those of the dataset's configuration class.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from rlobj.base.errors import ConfigError, DataError, MissingExtra, reported
from rlobj.data.problems import Problem, digest
from rlobj.workers.worker import NoReply, Worker

PREFIX = "reasoning-gym:"
REWARD = "reasoning_gym"
DEFAULTS = {"seed": 0, "size": 1000}


def is_gym(source: Any) -> bool:
    """Whether a source is a dataset of reasoning-gym."""
    return isinstance(source, str) and source.startswith(PREFIX)


def refuse_missing(source: str) -> None:
    """Refuse a source if reasoning-gym is not installed.

    Raises:
        MissingExtra: so it is.
    """
    if find_spec("reasoning_gym") is None:
        raise MissingExtra("reasoning-gym", "reasoning-gym", source)


def gym_problems(source: str, split: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Make the problems of a split; training and test problems have different seeds.

    `extra["reasoning_gym"]` has what the dataset's scorer needs. Another process makes the
    problems, with a fixed hash seed, because some datasets depend on it.

    Args:
        source: `reasoning-gym:NAME`.
        split: train or test.
        settings: of the dataset. `size` is the number of problems of each split, 1000 by default;
            `seed` is 0 by default. A test problem that is also a training problem is left out.

    Raises:
        MissingExtra: reasoning-gym is not installed.
        DataError: as reasoning-gym says of an unknown dataset or setting, or a wrong value.
    """
    refuse_missing(source)
    name, settings = source.removeprefix(PREFIX), {**DEFAULTS, **settings}
    arguments = {"name": name, "settings": settings, "split": split}
    worker = Worker("rlobj.data.gym_worker:Problems", arguments, start_seconds=float("inf"))
    try:
        with reported(DataError, f"{source} with {settings}", ConfigError, NoReply):
            worker.ready()
    finally:
        worker.kill()
    return [
        Problem(
            id=f"{name}-{digest(entry['question'])[:16]}",
            prompt=entry["question"],
            answer=entry["answer"] or "",
            extra={REWARD: {"name": name, "settings": settings, "metadata": entry["metadata"]}},
        )
        for entry in worker.opening
    ]
