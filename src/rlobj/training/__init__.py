"""Training: the loop around an objective, and what it leaves on disk."""

from rlobj.training.observer import Observer
from rlobj.training.run_directory import RunDirectory
from rlobj.training.trainer import Summary, train

__all__ = ["Observer", "RunDirectory", "Summary", "train"]
