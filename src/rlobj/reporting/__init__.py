"""Reporting: what every page, table and screen of rlobj shares.

pages     HTML files that need no network
markdown  tables of Markdown
terminal  waiting, progress, facts and tables on a terminal, and as lines of a log
"""

from rlobj.base.text import visible

__all__ = ["visible"]
