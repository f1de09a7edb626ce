"""Training: `train` starts a run, `resume` continues one.

run.py     from the arguments to the settings, their checks, and a run
loop/      what a run opens, the algorithm of a step, and what a run returns
rollouts/  from problems to graded responses
parallel/  several processes
checkpoint.py, trackers.py  what a run leaves beside metrics and records
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
