"""Templates of prompts: what they read, what is wrong with them, and what they may take."""

from __future__ import annotations

import datetime

import pytest
from limits import within

from rlobj.base.errors import ConfigError
from rlobj.data import Problem, templates
from rlobj.data.templates import Templates
from rlobj.models.score_sources import check_prompts
from rlobj.settings.run_config import RunConfig

PROBLEM = Problem("7", "1 + 1 = ?", "2", {"level": 3, "day": datetime.date(2026, 1, 2)})
NAME = "scores.hinted.prompt"
LOOP = "{{% for {0} in range(99999) %}}{1}{{% endfor %}}"
TOO_MUCH = {
    "loops in loops": LOOP.format("i", LOOP.format("j", LOOP.format("k", ""))),
    "a text that repeats": "{{ 'a' * 10**9 }}",
    "a text that doubles": "{% set n = namespace(x='12345678') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
}
WRONG = {
    "{{ prompt": "is no template: unexpected end of template",
    "{{ prompt | nope }}": "is no template: No filter named 'nope'",
    "{{ nope(prompt) }}": "calls nope, and there is no such function",
    "{{ prompt() }}": "calls prompt, and there is no such function",
    "{% include 'a' %}": "is no template: it includes another template",
    "{% for i in range(10**9) %}{% endfor %}": "Range too big",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "maximum recursion depth exceeded",
    "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}": "maximum recursion depth exceeded",
    "{{ prompt.__class__.__mro__ }}": "access to attribute '__class__' of 'str' object is unsafe",
    "{{ cycler.__init__.__globals__ }}": "access to attribute '__init__'",
}
UNFILLED = {
    "{{ nope }}": "'nope' is undefined. Its columns are level, day, prompt, answer and feedback",
    "{{ prompt.nope() }}": "'str object' has no attribute 'nope'",
    "{{ 'a' * level * 10**7 }}": "its text has 30,000,000 characters; at most 16,777,216",
}


@pytest.fixture
def filler():
    with Templates() as found:
        yield found


def test_a_template_reads_the_columns_of_a_problem_and_the_feedback(filler):
    text = "{{ prompt }} {{ answer }} {{ level + 1 }} {{ day }} {{ feedback }}"
    assert filler.check(NAME, text) == ["answer", "day", "feedback", "level", "prompt"]
    assert filler.fill(NAME, text, PROBLEM, "no") == "1 + 1 = ? 2 4 2026-01-02 no"


@pytest.mark.parametrize("template", WRONG)
def test_a_template_that_can_never_be_filled_in_is_refused(filler, template):
    with within(60), pytest.raises(ConfigError) as found:
        filler.check(NAME, template)
    assert str(found.value).startswith(NAME)
    assert WRONG[template] in str(found.value)


@pytest.mark.parametrize("template", UNFILLED)
def test_a_template_that_does_not_fit_a_problem_is_refused(filler, template):
    with pytest.raises(ConfigError) as found:
        filler.fill(NAME, template, PROBLEM)
    assert str(found.value).startswith(f"{NAME} cannot be filled in for problem 7: ")
    assert UNFILLED[template] in str(found.value)


@pytest.mark.parametrize(
    "what", [*list(TOO_MUCH)[:2], pytest.param("a text that doubles", marks=pytest.mark.slow)]
)
def test_a_template_that_takes_too_much_ends_in_bounded_time_and_memory(what, monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 1)
    with within(100), Templates() as filler:
        with pytest.raises(ConfigError, match=rf"{NAME} takes more than 1 seconds or 2 GiB"):
            filler.check(NAME, TOO_MUCH[what])
        assert filler.fill(NAME, "{{ prompt }}", PROBLEM) == PROBLEM.prompt


def test_a_template_is_bounded_also_if_it_takes_too_much_with_one_feedback_only(filler):
    text = "{% if feedback == 'no' %}{{ feedback * 10**10 }}{% endif %}"
    assert filler.fill(NAME, text, PROBLEM, "yes") == ""
    with within(100), pytest.raises(ConfigError, match="takes more than"):
        filler.fill(NAME, text, PROBLEM, "no")


@pytest.mark.parametrize("prompt", ["{{ nope }}", "{{ prompt", "file"])
def test_prompts_are_checked_before_a_run_with_the_problems_of_this_machine(tmp_path, prompt):
    (tmp_path / "hint.j2").write_text("{{ prompt }}{{ nope }}")
    prompt = str(tmp_path / "hint.j2") if prompt == "file" else prompt
    hinted = {"model": "policy", "prompt": prompt}
    with pytest.raises(ConfigError, match=rf"{NAME} .*"):
        check_prompts(RunConfig(scores={"hinted": hinted}, data={"source": "addition"}))


def test_columns_of_problems_that_are_not_here_are_named(caplog):
    hinted = {"model": "policy", "prompt": "{{ prompt }}{{ solution }}"}
    check_prompts(RunConfig(scores={"hinted": hinted}, data={"source": "owner/name"}))
    assert f"{NAME} reads solution: the problems must have it" in caplog.text
