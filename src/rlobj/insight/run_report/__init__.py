"""Report: runs compared on one page.

report      write the page, and its figures as SVG and PNG; write_report: of runs that are read
Run         a run as the report reads it
PLOTS       the figures by section of the page
"""

from rlobj.insight.run_report.figures import PLOTS
from rlobj.insight.run_report.page import report, write_report
from rlobj.insight.run_report.runs import Run, read_runs
from rlobj.insight.run_report.tables import summary, times

__all__ = ["PLOTS", "Run", "read_runs", "report", "summary", "times", "write_report"]
