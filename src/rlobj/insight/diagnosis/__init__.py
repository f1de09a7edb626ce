"""Diagnosis: what is wrong with a run, from its metrics.

diagnose    read one run or several runs
Watch       the same checks on one line of metrics after another, as training uses them
CHECKS      the checks by name
"""

from rlobj.insight.diagnosis.checks import CHECKS
from rlobj.insight.diagnosis.diagnosing import Watch, diagnose
from rlobj.insight.diagnosis.drivers import agreed
from rlobj.insight.diagnosis.findings import Diagnosis, Finding, RunDiagnosis

__all__ = ["CHECKS", "Diagnosis", "Finding", "RunDiagnosis", "Watch", "agreed", "diagnose"]
