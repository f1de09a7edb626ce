"""The results of an evaluation, for people and for programs.

results.py   results.json, every number with its standard error and settings; and a table to paste
page.py      report.html, one file: problems, samples, responses, without a network
"""
