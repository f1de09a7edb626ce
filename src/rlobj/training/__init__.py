"""Training: the loop around an objective, and what it leaves on disk."""

from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.given import Given
from rlobj.training.loop.trainer import Summary, run_training
from rlobj.training.storage.run_directory import RunDirectory

__all__ = ["Callback", "Given", "RunDirectory", "Summary", "run_training"]
