"""Report: runs compared on one page.

runs        a run as the report reads it
figures     its curves
page        the tables and the page
"""
