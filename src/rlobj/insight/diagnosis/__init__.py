"""Diagnosis: what is wrong with a run, from its metrics.

diagnose    read one run or several runs
Watch       the same checks on one line of metrics after another, as training uses them
CHECKS      the checks by name
"""

from rlobj.base.lazy import names_of

__getattr__, __all__ = names_of(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
