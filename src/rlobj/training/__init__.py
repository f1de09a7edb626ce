"""Training: `train` starts a run, `resume` continues one.

run.py, objects.py, result.py   from Python arguments to a run and its result
loop/      the algorithm of a step
rollouts/  from problems to graded responses
storage/   the files of a run
parallel/  several processes
"""

from typing import TYPE_CHECKING

from rlobj.base.lazy import names_of

if TYPE_CHECKING:
    from rlobj.training.loop.callbacks import Callback
    from rlobj.training.loop.given import Given
    from rlobj.training.loop.trainer import run_training
    from rlobj.training.result import TrainingResult
    from rlobj.training.run import resume, train
    from rlobj.training.storage.run_directory import RunDirectory

__getattr__, __all__ = names_of(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "loop.callbacks": "Callback",
        "loop.given": "Given",
        "loop.trainer": "run_training",
        "result": "TrainingResult",
        "run": "resume train",
        "storage.run_directory": "RunDirectory",
    },
)
