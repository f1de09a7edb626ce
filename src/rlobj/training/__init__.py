"""Training: `train` starts a run, `resume` continues one.

run.py, objects.py, result.py   from Python arguments to a run and its result
loop/      the algorithm of a step
rollouts/  from problems to graded responses
storage/   the files of a run
parallel/  several processes
"""

from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.given import Given
from rlobj.training.loop.trainer import run_training
from rlobj.training.result import TrainingResult
from rlobj.training.run import resume, train

__all__ = ["Callback", "Given", "TrainingResult", "resume", "run_training", "train"]
