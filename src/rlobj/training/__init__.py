"""Training: the loop around an objective, and what it leaves on disk."""

from rlobj.training.loop.observer import Observer
from rlobj.training.loop.trainer import Summary, train
from rlobj.training.storage.run_directory import RunDirectory

__all__ = ["Observer", "RunDirectory", "Summary", "train"]
