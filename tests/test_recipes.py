"""The recipes of docs/recipes.md: its tables are the estimate's, and its commands are accepted."""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
import recipes  # noqa: E402

TEXT = recipes.PAGE.read_text(encoding="utf-8")


def test_tables_are_those_of_the_estimate():
    assert recipes.page(TEXT) == TEXT


def test_every_command_of_a_model_is_accepted_by_a_dry_run(tmp_path, cli):
    commands = re.findall(r"^rlobj train (.*?)\n```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(commands) == 2
