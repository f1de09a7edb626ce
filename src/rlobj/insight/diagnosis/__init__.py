"""Diagnosis: what is wrong with a run, from its metrics.

diagnose    read one run or several runs
Watch       the same checks on one line of metrics after another, as training uses them
CHECKS      the checks by name
"""

from rlobj.insight.diagnosis.checks import CHECKS
from rlobj.insight.diagnosis.diagnosing import (
    Diagnosis,
    Finding,
    RunDiagnosis,
    Watch,
    agreed,
    diagnose,
)

__all__ = ["CHECKS", "Diagnosis", "Finding", "RunDiagnosis", "Watch", "agreed", "diagnose"]
