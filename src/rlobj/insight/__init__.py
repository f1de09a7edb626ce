"""Insight: what people read from the records of a run.

inspect        the tokens that an objective dropped, reweighted or penalised
compare_runs   two runs side by side
"""

from rlobj.insight.inspecting import Inspection, inspect
from rlobj.insight.outcomes import Outcome, RunComparison, compare_runs

__all__ = ["Inspection", "Outcome", "RunComparison", "compare_runs", "inspect"]
