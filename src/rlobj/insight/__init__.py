"""Insight: what people read from the records of a run.

inspect        the tokens that an objective dropped, reweighted or penalised
write_inspection_page  a page with all tokens of a run
diagnose       what is wrong with a run
replay         other objectives and rules on the recorded tokens
Outcome        what came out of a run, in numbers
report         runs compared on one page
"""

from rlobj.insight.diagnosis import Diagnosis, Finding, diagnose
from rlobj.insight.inspecting import Inspection, Outcome, inspect
from rlobj.insight.page.writing import write_inspection_page
from rlobj.insight.replaying import Replay, replay
from rlobj.insight.run_report import report

__all__ = [
    "Diagnosis",
    "Finding",
    "Inspection",
    "Outcome",
    "Replay",
    "diagnose",
    "inspect",
    "replay",
    "report",
    "write_inspection_page",
]
