"""What a launcher tells the processes that it starts, in variables of their environment."""

import os

from rlobj.base.errors import Argument, ConfigError


def first_process() -> bool:
    """Whether this is the first of the processes that a launcher has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def started_processes() -> int:
    """How many processes a launcher has started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def absent_variables() -> list[str]:
    """The variables with which processes find each other that no launcher has set.

    Raises:
        ConfigError: one of several processes lacks them.
    """
    needed = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    absent = [name for name in needed if name not in os.environ]
    if started_processes() > 1 and absent:
        what = f"WORLD_SIZE is {started_processes()}, but {', '.join(absent)} is not set. Use "
        raise ConfigError(what, Argument("processes", "K"), ", torchrun or accelerate launch")
    return absent
