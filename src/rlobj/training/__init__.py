"""Training: `train` starts a run, `resume` continues one.

run.py     `train` and `resume`: from their arguments to a run and its result
new_run.py, resumed_run.py  from layers to the settings of a run, checked; nothing is written
resolving.py  each setting that is `auto` gets its value: a ResolvedRun
loop/      what a run opens, the algorithm of a step, and what a run returns
rollouts/  from problems to graded responses
parallel/  several processes
checkpoint.py, trackers.py  what a run leaves beside metrics and records
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
