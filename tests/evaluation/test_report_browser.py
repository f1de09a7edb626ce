"""The HTML page in a real browser: headless Chromium over its debugging pipe, no other package."""

from __future__ import annotations

import json
import time
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, NAMES, Browser
from graded import graded

from rlobj.data import Problem
from rlobj.evaluation.graded import GradedBenchmark, GradedProblem
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


def answered(
    name: str, prompt: str, gold: str, *samples: tuple[str, bool | None, str]
) -> GradedProblem:
    """Samples are (text, verdict, finish); the answer is what is in the text's box."""
    rows = []
    for i, (text, correct, finish) in enumerate(samples):
        answer = text.rpartition(r"\boxed{")[2].partition("}")[0] if r"\boxed{" in text else None
        row = {"text": text, "correct": correct, "finish": finish, "answer": answer}
        rows.append({**row, "seed": 2**62 + i, "tokens": 10 + i})
    return graded(Problem(name, prompt, gold), *rows)


def right(words: str = "So") -> tuple[str, bool | None, str]:
    return (
        rf"{words} $\frac{{8}}{{2}} = 4$, that is \[ 2^2 = 4. \] Hence \boxed{{4}}.",
        True,
        "stop",
    )


SUMS = GradedBenchmark(
    "sums",
    (
        answered(
            "two",
            r"What is $2 + \sqrt{4}$, \[ \text{or } 4? \]",
            "4",
            right(),
            right(),
            right("Thus"),
        ),
        answered(
            "three",
            "It costs $5 and $6. How much?",
            r"\$11",
            right("giraffe"),
            ("no idea", False, "stop"),
            (r"It is \boxed{x}", None, "stop"),
        ),
        answered(
            HOSTILE,
            f"Hostile: {HOSTILE}",
            HOSTILE,
            (HOSTILE + r"\boxed{5}", False, "stop"),
            ("on and on", False, "length"),
            (r"\boxed{6}", False, "stop"),
        ),
    ),
)
OTHERS = GradedBenchmark("others", (answered("one", "Elsewhere", "4", right(), right()),))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    entries = [replace(each, settings={"temperature": 1.0}) for each in (SUMS, OTHERS)]
    write_page(path, entries, {"model": f"policy {HOSTILE[:60]}", "versions": {"rlobj": "1"}})
    return path


VISIBLE = "[...document.querySelectorAll('.row')].filter(row => !row.hidden).length"


def cell(row: int, sample: int) -> str:
    rows = "document.querySelectorAll('.row')"
    return f"{rows}[{row}].querySelectorAll('.cells .cell')[{sample}]"


def change(browser: Browser, name: str, value: str, rows: int) -> None:
    """Another value of a filter, until so many problems are shown."""
    changed = (
        f"e.value = {json.dumps(value)}; e.dispatchEvent(new Event('input', {{bubbles: true}}))"
    )
    browser.run(f"(e => {{ {changed} }})(document.getElementById('{name}'))")
    browser.wait(f"{VISIBLE} === {rows}")


def test_hostile_texts_and_tools_are_shown_and_do_nothing(browser: Browser, tmp_path: Path) -> None:
    tool = f"{HOSTILE}\x1b[31mred\u202eevil\n\tsecond line"
    uses = (ToolUse("python", "timeout"), ToolUse("<b>\x1b[2J"))
    turns = [
        TurnRecord(0, "I ask $x^2$", array("i"), tool, 0.5, uses=uses, end=""),
        TurnRecord(0, HOSTILE, array("i"), "", 0.5, uses=(), end="turns"),
    ]
    row = {"text": HOSTILE, "correct": False, "finish": "length", "turns": turns}
    problem = Problem(HOSTILE, f"Hostile: {HOSTILE}", HOSTILE)
    evaluation = GradedBenchmark(
        "sums", (graded(problem, row, {**row, "text": HOSTILE + r"\boxed{5}", "turns": ()}),)
    )
    page = tmp_path / "page.html"
    write_page(page, [evaluation], {"model": HOSTILE})
    browser.open(page)
    browser.run(f"{cell(0, 0)}.click()")
    browser.wait("document.querySelector('#response .said .katex')")
    said = "[...document.querySelectorAll('#response h4')].map(each => each.textContent)"
    assert browser.run(said) == [
        "policy, turn 0reward 0.5; calls python: timeout, <b>␛[2J",
        "environment",
        "policy, turn 1reward 0.5; the conversation reached its number of turns",
    ]
    heard = browser.run("document.querySelector('#response .heard').textContent")
    assert heard == f"{HOSTILE}␛[31mred‹202e›evil\n␉second line"
    browser.press("ArrowRight")  # the other response has no turns
    browser.wait("document.querySelector('#response .katex .fbox')")  # its last formula
    strange = "main :is(a:not([href^='#']), img), dialog :is(a, img, iframe, script, b, [onerror])"
    assert browser.run(f"document.querySelectorAll({json.dumps(strange)}).length") == 0
    fixed = "[...document.querySelectorAll('#reader *')].some("
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


def test_the_grid_has_every_sample_and_its_filters_find_problems_and_responses(browser, page):
    browser.open(page)
    shapes = "[...document.querySelectorAll('.grid')].map(grid => [...grid.children].map("
    shapes += "row => [...row.querySelectorAll('.cell')].map(c => c.classList[1]).join('')))"
    assert browser.run(shapes) == [["rrr", "rnu", "wtw"], ["rr"]]
    within = "document.querySelectorAll('.row:not([hidden]) .cell:not(.out)').length"
    for text, rows, cells in (("GIRAFFE", 1, 1), ("in none", 0, 0), ("$5 and $6.", 1, 3)):
        change(browser, "query", text, rows)
        assert browser.run(within) == cells, text
    change(browser, "query", "", 4)
    change(browser, "which", "others", 1)
    change(browser, "which", "", 4)
    browser.run("document.querySelector('input[value=r]').click()")
    browser.wait(f"{VISIBLE} === 2")
    browser.run("document.querySelector('input[value=r]').click()")
    change(browser, "order", "1", 4)
    shares = "[...document.querySelectorAll('.share')].map(share => share.textContent)"
    assert browser.run(shares) == ["0", "33", "100", "100"]
    assert browser.complaints() == []


def test_a_response_opens_by_the_keyboard_with_its_formulas_also_on_a_phone(browser, page):
    browser.resize(390, 800)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    browser.run(f"{cell(0, 1)}.focus()")
    browser.press("ArrowRight")
    browser.press("Enter")
    browser.wait("document.querySelectorAll('#response .katex').length === 3")
    assert browser.run("document.getElementById('reader').scrollWidth") <= 390
    assert browser.run("document.querySelectorAll('#response .katex-display').length") == 1
    assert browser.run("document.querySelectorAll('#problem .katex').length") == 2
    facts = browser.run("document.getElementById('verdict').textContent")
    assert [word for word in ("right", "integers", str(2**62 + 2)) if word not in facts] == []
    browser.wait("[...document.fonts].some(font => font.status === 'loaded')")  # from the page
    browser.run("document.getElementById('source').click()")
    assert browser.run("document.getElementById('response').textContent") == right("Thus")[0]
    browser.press("ArrowRight")
    title = "document.getElementById('reader-title').textContent"
    assert browser.run(title) == "sums · three · sample 0"  # of the next problem
    assert browser.run("document.querySelectorAll('#problem .katex').length") == 0  # money
    browser.press("Escape")
    browser.wait(f"document.activeElement === {cell(1, 0)}")
