"""Reporting: what every page, table and screen of rlobj shares.

figures   curves as SVG or PNG, and the same for a page; HTML files that need no network; pipe
          tables of Markdown; text without control characters
"""

from rlobj.reporting.figures import Figure, Line, Mark, Target, figure_data, save_figure, visible

__all__ = ["Figure", "Line", "Mark", "Target", "figure_data", "save_figure", "visible"]
