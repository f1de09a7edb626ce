"""Templates of prompts: what they read, and what is wrong with them."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.training.loop.scores import fill_template

PROBLEM = Problem("7", "1 + 1 = ?", "2", {"level": 3, "day": datetime.date(2026, 1, 2)})
NAME = "scores.hinted.prompt"
UNFILLED = {
    "{{ nope }}": "'nope' is undefined. Its columns are level, day, prompt, answer, feedback",
    "{{ nope(prompt) }}": "'nope' is undefined",
    "{{ prompt.nope() }}": "'str object' has no attribute 'nope'",
    "{% include 'a' %}": "no loader for this environment",
    "{% for i in range(10**9) %}{% endfor %}": "Range too big",
    "{{ prompt.__class__.__mro__ }}": "access to attribute '__class__' of 'str' object is unsafe",
    "{{ cycler.__init__.__globals__ }}": "access to attribute '__init__'",
}


def test_a_template_reads_the_columns_of_a_problem_and_the_feedback():
    text = "{{ prompt }} {{ answer }} {{ level + 1 }} {{ day }} {{ feedback }}"
    assert fill_template(NAME, text, PROBLEM, "no") == "1 + 1 = ? 2 4 2026-01-02 no"


@pytest.mark.parametrize("template", UNFILLED)
def test_a_template_that_does_not_fit_a_problem_is_refused(template):
    with pytest.raises(ConfigError) as caught:
        fill_template(NAME, template, PROBLEM)
    assert str(caught.value).startswith(f"{NAME} cannot be filled in for problem 7: ")
    assert UNFILLED[template] in str(caught.value)


def test_a_template_calls_no_method_of_an_object_in_a_column(tmp_path):
    problem = Problem("7", "?", "2", {"file": tmp_path})
    with pytest.raises(ConfigError, match="'str object' has no attribute 'rmdir'"):
        fill_template(NAME, "{{ file.rmdir() }}", problem)
    assert Path(tmp_path).exists()
