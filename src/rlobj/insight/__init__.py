"""Insight: what people read from the records of a run.

inspect        the tokens that an objective dropped, reweighted or penalised
diagnose       what is wrong with a run
Outcome        what came out of a run, in numbers
"""

from rlobj.insight.diagnosis import Diagnosis, Finding, diagnose
from rlobj.insight.inspecting import Inspection, inspect
from rlobj.insight.outcomes import Outcome

__all__ = [
    "Diagnosis",
    "Finding",
    "Inspection",
    "Outcome",
    "diagnose",
    "inspect",
]
