"""Reporting: what every page, table and screen of rlobj shares.

figures   curves as SVG or PNG, and the same for a page
pages     HTML files that need no network
markdown  tables of Markdown
terminal  waiting, progress, facts and tables on a terminal, and as lines of a log
"""

from rlobj.base.text import visible
from rlobj.reporting.figures import Figure, Line, Mark, Target, figure_data, save_figure

__all__ = ["Figure", "Line", "Mark", "Target", "figure_data", "save_figure", "visible"]
