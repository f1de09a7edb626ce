"""Reporting: what every page, table and screen of rlobj shares.

render_page      one HTML file that needs no network
definition_list  names and values
markdown_table   a pipe table
visible          text without control characters
"""

from rlobj.reporting.markdown import escaped, markdown_table
from rlobj.reporting.page import definition_list, fill, render_page, script_safe
from rlobj.reporting.plain import visible

__all__ = [
    "definition_list",
    "escaped",
    "fill",
    "markdown_table",
    "render_page",
    "script_safe",
    "visible",
]
