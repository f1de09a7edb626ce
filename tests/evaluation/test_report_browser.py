"""The HTML page in a real browser: headless Chromium over its debugging pipe, no other package."""

from __future__ import annotations

import json
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, NAMES, Browser
from graded import graded

from rlobj.data import Problem
from rlobj.evaluation.graded import GradedBenchmark, GradedProblem
from rlobj.evaluation.report.page import write_page
from rlobj.evaluation.summary import BenchmarkResult, summarise
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
    entries = [
        BenchmarkResult(each, summarise(each), {"temperature": 1.0}) for each in (SUMS, OTHERS)
    ]
    write_page(path, entries, {"model": f"policy {HOSTILE[:60]}", "versions": {"rlobj": "1"}})
    return path


def turn(text: str, observation: str = "", end: str = "", uses: Any = ()) -> TurnRecord:
    return TurnRecord(0, text, array("i"), observation, 0.5, uses=uses, end=end)


def test_a_conversation_is_shown_turn_by_turn_and_its_tools_do_nothing(browser, tmp_path):
    tool = f"{HOSTILE}\x1b[31mred\u202eevil\n\tsecond line"
    uses = (ToolUse("python", "timeout"), ToolUse("<b>\x1b[2J"))
    turns = [turn("I ask $x^2$", tool, uses=uses), turn(HOSTILE, end="turns")]
    row = {"text": HOSTILE, "correct": False, "finish": "length", "turns": turns}
    plain = {"text": "no turns", "correct": True, "finish": "stop"}
    evaluation = GradedBenchmark("sums", (graded(Problem("one", "?", "4"), row, plain),))
    page = tmp_path / "page.html"
    write_page(page, [BenchmarkResult(evaluation, summarise(evaluation), {})], {"model": "m"})
    browser.open(page, "#r/sums/one/0")
    browser.wait("document.querySelector('#response .said .katex')")
    said = "[...document.querySelectorAll('#response h4')].map(each => each.textContent)"
    assert browser.run(said) == [
        "policy, turn 0reward 0.5; calls python: timeout, <b>␛[2J",
        "environment",
        "policy, turn 1reward 0.5; the conversation reached its number of turns",
    ]
    heard = browser.run("document.querySelector('#response .heard').textContent")
    assert heard == f"{HOSTILE}␛[31mred‹202e›evil\n␉second line"
    assert browser.run("document.querySelectorAll('#response .heard *').length") == 0
    strange = "dialog :is(a, img, iframe, script, b, [onerror])"
    assert browser.run(f"document.querySelectorAll({json.dumps(strange)}).length") == 0
    assert browser.run("window.broken === undefined")
    browser.run("document.getElementById('source').click()")
    assert browser.run("document.querySelector('#response .said').textContent") == "I ask $x^2$"
    assert browser.run("document.querySelectorAll('#response .katex').length") == 0
    search(browser, "SECOND line")
    assert browser.run("document.querySelectorAll('.cell.out').length") == 1
    search(browser, "")
    browser.run(f"{cell(0, 1)}.click()")
    assert browser.run("document.getElementById('response').textContent") == "no turns"
    browser.press("ArrowLeft")
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


VISIBLE = "[...document.querySelectorAll('.row')].filter(row => !row.hidden).length"
FORMULAS = "document.querySelectorAll('#reader .katex').length"


def cell(row: int, sample: int) -> str:
    rows = "document.querySelectorAll('.row')"
    return f"{rows}[{row}].querySelectorAll('.cells .cell')[{sample}]"


def search(browser: Browser, text: str) -> None:
    browser.run(
        "(() => { const box = document.getElementById('query');"
        f"box.value = {json.dumps(text)};"
        "box.dispatchEvent(new Event('input', {bubbles: true})) })()"
    )
    later = "new Promise((done) => setTimeout(done, 400))"  # the box waits for more letters
    browser.send("Runtime.evaluate", expression=later, awaitPromise=True)


def test_the_grid_has_a_cell_for_every_sample_of_every_problem(browser, page):
    browser.open(page)
    shapes = "[...document.querySelectorAll('.grid')].map(grid => [...grid.children].map("
    shapes += "row => [...row.querySelectorAll('.cell')].map(c => c.classList[1]).join('')))"
    assert browser.run(shapes) == [["rrr", "rnu", "wtw"], ["rr"]]
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_a_response_opens_with_its_formulas_drawn_and_shows_its_source(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    browser.run(f"{cell(0, 2)}.click()")
    browser.wait("document.querySelectorAll('#response .katex').length === 3")
    assert browser.run("document.querySelectorAll('#response .katex-display').length") == 1
    assert browser.run("document.querySelector('#response').textContent").startswith("Thus ")
    assert browser.run("document.querySelectorAll('#problem .katex').length") == 2
    facts = browser.run("document.getElementById('verdict').textContent")
    assert [word for word in ("right", "integers", str(2**62 + 2)) if word not in facts] == []
    assert browser.run("location.hash") == "#r/sums/two/2"
    fonts = "[...document.fonts].some(font => font.status === 'loaded')"
    browser.wait(fonts)  # from inside the page
    browser.run("document.getElementById('source').click()")
    assert browser.run("document.getElementById('response').textContent") == right("Thus")[0]
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_search_reads_problems_and_responses(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run(VISIBLE) == 4
    search(browser, "GIRAFFE")
    assert browser.run(VISIBLE) == 1
    assert (
        browser.run("document.querySelectorAll('.row:not([hidden]) .cell:not(.out)').length") == 1
    )
    assert browser.run("document.getElementById('found').textContent").startswith("1 of 11 resp")
    search(browser, "$5 and $6.")  # in a problem: all of its samples
    assert (
        browser.run("document.querySelectorAll('.row:not([hidden]) .cell:not(.out)').length") == 3
    )
    search(browser, "in none of them")
    assert browser.run(VISIBLE) == 0
    search(browser, "")
    assert browser.run(VISIBLE) == 4


def test_filters_by_verdict_and_benchmark_and_orders(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('input[value=r]').click()")
    browser.wait(f"{VISIBLE} === 2")
    browser.run("document.querySelector('input[value=r]').click()")
    change = "e.dispatchEvent(new Event('input', {bubbles: true}))"
    browser.run(f"(e => {{ e.selectedIndex = 2; {change} }})(document.getElementById('which'))")
    browser.wait(f"{VISIBLE} === 1")
    browser.run(f"(e => {{ e.selectedIndex = 0; {change} }})(document.getElementById('which'))")
    browser.run(f"(e => {{ e.value = '1'; {change} }})(document.getElementById('order'))")
    browser.wait(f"{VISIBLE} === 4")
    shares = "[...document.querySelectorAll('.share')].map(share => share.textContent)"
    assert browser.run(shares) == ["0", "33", "100", "100"]


def test_the_page_works_with_the_keyboard_alone(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run(f"{cell(0, 0)}.focus()")
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    browser.press("Enter")
    browser.wait("document.getElementById('reader').open")
    title = "document.getElementById('reader-title').textContent"
    assert browser.run(title) == "sums · three · sample 1"
    assert browser.run("document.querySelectorAll('#problem .katex').length") == 0  # money
    browser.press("ArrowRight")
    assert browser.run(title) == "sums · three · sample 2"
    browser.press("ArrowRight")
    assert browser.run(title).endswith("sample 0")  # of the next problem
    browser.press("ArrowLeft")
    browser.press("Escape")
    browser.wait("!document.getElementById('reader').open")
    browser.wait(f"document.activeElement === {cell(1, 2)}")


def test_hostile_text_is_shown_and_does_nothing(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run(f"{cell(2, 0)}.click()")
    browser.wait("document.querySelector('#response .katex .fbox')")  # its last formula
    assert "</script><script>" in browser.run("document.getElementById('response').textContent")
    assert browser.run("window.broken === undefined")
    strange = "main :is(a:not([href^='#']), img), dialog :is(a, img, iframe, script, [onerror])"
    assert browser.run(f"document.querySelectorAll({json.dumps(strange)}).length") == 0
    assert browser.run("document.scripts.length") == 4 + 1 + 4  # ours, data, texts per problem
    fixed = "[...document.querySelectorAll('#reader *')].some("
    fixed += "e => getComputedStyle(e).position === 'fixed')"
    assert browser.run(fixed) is False
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_a_script_that_is_added_to_the_page_does_not_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=broken=4>')")
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'broken=5'}))"
    )
    time.sleep(0.2)
    assert browser.run("window.broken === undefined")
    assert any("Content Security Policy" in complaint for complaint in browser.complaints())


def test_the_page_fits_a_phone(browser: Browser, page: Path) -> None:
    browser.resize(390, 800)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    wide = "document.querySelector('.wide')"
    assert browser.run(f"{wide}.scrollWidth > {wide}.clientWidth")
    assert "linear-gradient" in browser.run(f"getComputedStyle({wide}).backgroundImage")
    assert browser.run(f"{wide}.querySelector('tbody th').offsetWidth") < 170
    browser.run(f"{cell(0, 0)}.click()")
    browser.wait(f"{FORMULAS} > 3")
    assert browser.run("document.getElementById('reader').scrollWidth") <= 390


@pytest.mark.slow
def test_a_page_of_ten_thousand_long_responses_opens_and_is_searched(browser, tmp_path):
    long = "Consider $x_{i}^2$ and so on. " * 160
    problems = [
        answered(
            str(i), "How many?", "4", *[(f"{long} item{i}x{j}", False, "stop") for j in range(20)]
        )
        for i in range(500)
    ]
    evaluation = GradedBenchmark("large", tuple(problems))
    write_page(
        tmp_path / "large.html",
        [BenchmarkResult(evaluation, summarise(evaluation), {})],
        {"model": "m"},
    )
    browser.open(tmp_path / "large.html")
    assert browser.run("document.querySelectorAll('.row .cell').length") == 10_000
    assert "texts of 8," in browser.run("document.querySelector('.notes').textContent")
    search(browser, "item7x3")
    browser.wait(f"{VISIBLE} === 1")
    browser.open(tmp_path / "large.html", "#r/large/499/19")
    browser.wait("document.getElementById('response').textContent.includes('samples.jsonl')")
    browser.open(tmp_path / "large.html", "#r/large/7/3")
    browser.wait("document.querySelectorAll('#response .katex').length === 160")
