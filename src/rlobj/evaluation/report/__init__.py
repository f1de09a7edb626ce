"""The results of an evaluation, for people and for programs.

results_json         results.json: every number with its standard error and settings
results_markdown     a table to paste into a README or a paper
write_page           report.html, one file: problems, samples, responses, without a network
"""

from rlobj.evaluation.report.page import write_page
from rlobj.evaluation.report.results import results_json, results_markdown

__all__ = ["results_json", "results_markdown", "write_page"]
