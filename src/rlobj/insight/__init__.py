"""Insight: what people read from the records of a run.

inspect   the tokens that an objective dropped, reweighted or penalised
"""

from rlobj.insight.inspecting import Inspection, inspect

__all__ = ["Inspection", "inspect"]
