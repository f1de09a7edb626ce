"""Insight: what people read from the records of a run.

inspect        the tokens that an objective dropped, reweighted or penalised
compare_runs   two runs side by side
diagnose       what is wrong with a run
"""

from rlobj.insight.diagnosis import Diagnosis, Finding, diagnose
from rlobj.insight.inspecting import Inspection, inspect
from rlobj.insight.outcomes import Outcome, RunComparison, compare_runs

__all__ = [
    "Diagnosis",
    "Finding",
    "Inspection",
    "Outcome",
    "RunComparison",
    "compare_runs",
    "diagnose",
    "inspect",
]
