"""Report: runs compared on one page.

report      write the page, and its figures as SVG and PNG; write_report: of runs that are read
Run         a run as the report reads it
PLOTS       the table of figures
"""

from rlobj.insight.run_report.page import report, summary, times, write_report
from rlobj.insight.run_report.runs import PLOTS, Run, read_runs

__all__ = ["PLOTS", "Run", "read_runs", "report", "summary", "times", "write_report"]
