"""Reporting: what every page, table and screen of rlobj shares.

render_page      one HTML file that needs no network
save_figure      curves as SVG or PNG; figure_data: the same for a page
definition_list  names and values
markdown_table   a pipe table
visible          text without control characters
"""

from rlobj.reporting.figures import Figure, Line, Mark, Target, figure_data, save_figure
from rlobj.reporting.markdown import escaped, markdown_table
from rlobj.reporting.page import definition_list, fill, html_table, pack, render_page, script_safe
from rlobj.reporting.plain import visible

__all__ = [
    "Figure",
    "Line",
    "Mark",
    "Target",
    "definition_list",
    "escaped",
    "figure_data",
    "fill",
    "html_table",
    "markdown_table",
    "pack",
    "render_page",
    "save_figure",
    "script_safe",
    "visible",
]
