"""Training: `train` starts a run, `resume` continues one.

run.py     from the arguments to the settings, their checks, and a run
loop/      what a run opens, the algorithm of a step, and what a run returns
rollouts/  from problems to graded responses
parallel/  several processes
checkpoint.py, trackers.py  what a run leaves beside metrics and records
"""

from typing import TYPE_CHECKING

from rlobj.base.lazy import names_of

if TYPE_CHECKING:
    from rlobj.training.loop.clock import Callback
    from rlobj.training.loop.opening import CallerInputs
    from rlobj.training.loop.running import TrainingResult, run_training
    from rlobj.training.run import resume, train

__getattr__, __all__ = names_of(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "loop.clock": "Callback",
        "loop.opening": "CallerInputs",
        "loop.running": "TrainingResult run_training",
        "run": "resume train",
    },
)
