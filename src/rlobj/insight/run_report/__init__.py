"""Report: runs compared on one page.

runs        a run as the report reads it
figures     its curves
page        the tables and the page
"""

from rlobj.insight.run_report.page import report, summary, times, write_report
from rlobj.insight.run_report.runs import read_runs

__all__ = ["read_runs", "report", "summary", "times", "write_report"]
