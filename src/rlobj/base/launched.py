"""What a launcher tells the processes that it starts, in variables of their environment."""

import os
import shlex
import sys
from pathlib import Path

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


COMMAND = "RLOBJ_COMMAND"
"""The variable with the command line that has started this process and others."""


def command_line() -> str:
    """What was typed to start rlobj; of a program of one's own, its file alone.

    Its arguments are its own, and may be secrets.
    """
    program = Path(sys.argv[0])
    own = program.name == "rlobj" or program.parent.name == "rlobj_cli"
    return os.environ.get(COMMAND) or shlex.join(["rlobj", *sys.argv[1:]] if own else sys.argv[:1])
