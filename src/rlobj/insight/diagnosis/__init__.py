"""Diagnosis: what is wrong with a run, from its metrics.

diagnose    read one run or several runs
Watch       the same checks on one line of metrics after another, as training uses them
CHECKS      the checks by name
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
