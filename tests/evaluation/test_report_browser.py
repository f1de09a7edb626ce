"""The HTML page in a real browser: headless Chromium over its debugging pipe, no other package."""

from __future__ import annotations

import json
import time
from array import array
from pathlib import Path

import pytest
from browser import CHROMIUM, NAMES, Browser
from graded import graded

from rlobj.data import Problem
from rlobj.evaluation.graded import GradedBenchmark
from rlobj.evaluation.report.page import write_page
from rlobj.samplers.response import ToolUse, TurnRecord

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(NAMES)} is installed"),
]

HOSTILE = (
    "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
    r"<!--<script> $\href{javascript:window.broken=3}{click}$ "
    r"$\includegraphics{http://127.0.0.1:9/x.png}$ $\htmlStyle{position:fixed}{x}$ "
    r"$\def\a{\a\a}\a$ $\rule{9999em}{9999em}$ " + "$" + "{" * 3000 + "$ $x^2$"
)


OPEN = """[...document.querySelectorAll("details")].forEach(each => each.open = true)"""


def sample(text: str, correct: bool | None, answer: str | None) -> dict[str, object]:
    return {"text": text, "correct": correct, "answer": answer, "tokens": 1234, "seed": 2**62 + 1}


def test_hostile_texts_and_tools_are_shown_and_do_nothing(browser: Browser, tmp_path: Path) -> None:
    tool = f"{HOSTILE}\x1b[31mred\u202eevil\n\tsecond line"
    uses = (ToolUse("python", "timeout"), ToolUse("<b>\x1b[2J"))
    turns = [
        TurnRecord(0, "I ask $x^2$", array("i"), tool, 0.5, uses=uses, end=""),
        TurnRecord(0, HOSTILE, array("i"), "", 0.5, uses=(), end="turns"),
    ]
    row = sample(HOSTILE, False, HOSTILE)
    problem = graded(Problem(HOSTILE, HOSTILE, HOSTILE), {**row, "turns": turns}, row)
    page = tmp_path / "page.html"
    write_page(page, [GradedBenchmark(HOSTILE, (problem,))], {"model": HOSTILE})
    browser.open(page)
    browser.run(OPEN)
    browser.wait("document.querySelectorAll('.response .katex').length >= 3")
    said = "[...document.querySelectorAll('.response h3')].map(each => each.textContent)"
    assert browser.run(said) == [
        "policy, turn 0 reward 0.5; calls python: timeout, <b>␛[2J",
        "environment",
        "policy, turn 1 reward 0.5; the conversation reached its number of turns",
    ]
    heard = browser.run("document.querySelector('.heard').textContent")
    assert heard == f"{HOSTILE}␛[31mred‹202e›evil\n␉second line"
    strange = "main :is(a:not([href^='#']), img, iframe, script, b, [onerror])"
    assert browser.run(f"document.querySelectorAll({json.dumps(strange)}).length") == 0
    fixed = "[...document.querySelectorAll('.problem *')].some("
    assert browser.run(fixed + "e => getComputedStyle(e).position === 'fixed')") is False
    assert browser.run("window.broken === undefined")
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=broken=4>')")
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'broken=5'}))"
    )
    time.sleep(0.2)
    assert browser.run("window.broken === undefined")
    assert any("Content Security Policy" in complaint for complaint in browser.complaints())


def test_problems_open_with_their_formulas_and_verdicts_hide_responses(browser, tmp_path):
    text = r"So $\frac{8}{2} = 4$, that is \[ 2^2 = 4. \] Hence \boxed{4}."
    right, wrong = sample(text, True, "4"), sample("It costs $5 and $6.", False, None)
    root = sample(text, True, r"2^2")
    first = graded(Problem("x" * 60, r"What is $2 + \sqrt{4}$?", r"\frac{8}{2}"), root, wrong)
    second = graded(Problem("two", "And?", "two words"), right, right)
    write_page(tmp_path / "page.html", [GradedBenchmark("sums", (first, second))], {"model": "m"})
    browser.resize(390, 800)
    browser.open(tmp_path / "page.html")
    shown = "[...document.querySelectorAll('.problem, .response')].map(e => e.checkVisibility())"
    assert browser.run(shown) == [True, False, False, True, False, False]
    browser.run("document.querySelector('.problem > summary').focus()")
    browser.press("Enter")
    browser.wait("document.querySelectorAll('.katex').length === 3")  # prompt, gold and answer
    browser.run(OPEN)
    browser.wait("document.querySelectorAll('.katex').length === 12")
    words = "document.querySelectorAll('.problem > dl dd')[1].innerHTML"
    assert browser.run(words) == "<span>two words</span>"
    assert browser.run("document.querySelectorAll('.katex-display').length") == 3
    facts = browser.run("document.querySelector('.response').textContent")
    expected = ("sample 0", "integers", "1,234", str(2**62 + 1))
    assert [word for word in expected if word not in facts] == []
    assert browser.run("document.documentElement.scrollWidth") <= 390
    browser.wait("[...document.fonts].some(font => font.status === 'loaded')")  # from the page
    browser.run("document.querySelector('input[value=r]').click()")
    assert browser.run(shown) == [True, False, True, False, False, False]
    assert browser.complaints() == []
