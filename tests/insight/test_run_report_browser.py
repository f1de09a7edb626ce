"""The report in headless Chromium."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from browser import CHROMIUM, NAMES, Browser
from report_runs import HOSTILE, evaluation, step_line, write_run

import rlobj

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(NAMES)} is installed"),
]

READY = (
    "document.body.dataset.ready !== undefined && document.querySelector('#figure-reward canvas')"
)
VALUES = "[...document.querySelectorAll('#figure-reward output')].map(e => e.textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: rewards 0.1 to 0.9 with a finding, and 0.5 with only hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    ratio = {"policy/ratio_max": 200.0}
    lines = [
        step_line(i, **{"reward/mean": i / 10, "train/grad_norm": 1e20 if i == 3 else 1.0}, **ratio)
        for i in range(1, 10)
    ]
    first = write_run(folder / "first", [evaluation(0, 0.5), *lines])
    more = {f"selected/{HOSTILE}": 0.5, "reward/mean": 0.5}
    second = write_run(
        folder / HOSTILE.replace("/", "|"),
        [step_line(i, **more) for i in range(1, 6)],
        {"drop": HOSTILE, "controllers": {HOSTILE: {"target": 0.3}}},
        preset=HOSTILE,
    )
    return rlobj.report([first, second])


def opened(browser: Browser, page: Path) -> None:
    browser.resize(1280, 1600)  # the first figure and the first section are in view
    browser.open(page)
    browser.run("document.getElementById('figure-reward').scrollIntoView({block: 'center'})")
    browser.wait(READY)


def change(selector: str, script: str) -> str:
    done = "e.dispatchEvent(new Event('input', {bubbles: true}))"
    return f"(e => {{ {script}; {done} }})(document.querySelector({json.dumps(selector)}))"


def test_hostile_names_are_text_and_do_nothing(browser: Browser, page: Path) -> None:
    opened(browser, page)
    assert "</script><script>" in browser.run(
        "[...document.querySelectorAll('.chip code')].map(e => e.textContent).join()"
    )
    names = "[...document.querySelectorAll('.legend span')].map(e => e.textContent).join()"
    assert "<img src=x onerror" in browser.run(names)
    browser.run("document.getElementById('figure-selected').scrollIntoView()")
    browser.wait("document.querySelector('#figure-selected canvas')")
    assert browser.run("window.broken === undefined")
    assert browser.run("document.querySelectorAll('main img, main script').length") == 0
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_the_cursor_shows_the_values_of_all_figures_at_its_step(browser, page):
    opened(browser, page)
    assert browser.run(VALUES) == ["0.9", "0.5"]
    browser.run("document.getElementById('figure-reward').focus()")
    for _ in range(4):
        browser.press("ArrowLeft")
    assert browser.run(VALUES) == ["0.5", "0.5"]
    browser.press("ArrowRight")
    assert browser.run(VALUES) == ["0.6", "–"]  # the other run has no step 6
    others = "#figure-held-out-accuracy .cursor, #figure-training-accuracy .cursor"
    shown = f"[...document.querySelectorAll('{others}')].map(e => !e.hidden && e.dataset.x)"
    assert browser.run(shown) == [False, "6"]  # the evaluation is at step 0 alone


def test_smoothing_zoom_and_hiding_change_all_figures(browser: Browser, page: Path) -> None:
    opened(browser, page)
    browser.run(change("#smooth", "e.value = '5'"))
    assert browser.run(VALUES) == ["0.8", "0.5"]  # the mean of 0.7, 0.8 and 0.9
    browser.run(change("#smooth", "e.value = '0'"))
    box = browser.run(
        "(r => [r.x, r.y, r.width])(document.querySelector('#figure-reward .plot')"
        ".getBoundingClientRect())"
    )
    inner = box[2] - 54 - 14
    mouse = {"y": box[1] + 60, "button": "left", "clickCount": 1}
    for kind, share in (("mousePressed", 0.25), ("mouseMoved", 0.4), ("mouseMoved", 0.5)):
        place = {"x": box[0] + 54 + inner * share}
        browser.send("Input.dispatchMouseEvent", type=kind, buttons=1, **mouse, **place)
    assert browser.run("!document.querySelector('#figure-reward .selection').hidden")
    browser.send("Input.dispatchMouseEvent", type="mouseReleased", **mouse, **place)
    zoomed = "echarts.getInstanceByDom(document.querySelector('#figure-{} .plot')).getOption()"
    for name in ("reward", "training-accuracy"):
        option = f"{zoomed.format(name)}.xAxis[0]"
        assert browser.run(f"(a => [a.min, a.max])({option})") == [3, 5]
    browser.run("document.getElementById('reset').click()")
    assert browser.run(f"(a => [a.min, a.max])({zoomed.format('reward')}.xAxis[0])") == [1, 9]
    browser.run("document.querySelector('input[name=run]').click()")
    assert browser.run(f"{zoomed.format('reward')}.series.length") == 1
    browser.run("document.querySelector('input[name=run]').click()")
    browser.run("document.querySelectorAll('#figure-reward .legend button')[1].click()")
    assert browser.run(f"{zoomed.format('reward')}.series.length") == 1
    assert browser.run(f"{zoomed.format('training-accuracy')}.series.length") == 4
    browser.run("document.querySelector('#log').click()")
    assert browser.run(f"{zoomed.format('reward')}.yAxis[0].type") == "log"
    assert browser.complaints() == []


def test_a_mark_leads_to_its_finding(browser: Browser, page: Path) -> None:
    opened(browser, page)
    link = "document.querySelector('#figure-ratio .legend a')"
    assert browser.run(f"{link}.textContent") == "ratio-spike, since step 1"
    browser.run(f"{link}.click()")
    assert browser.run("document.querySelector(':target').textContent.startsWith('ratio-spike')")


def test_the_page_fits_a_phone_and_nothing_jumps(browser: Browser, page: Path) -> None:
    browser.resize(390, 800)
    browser.open(page)
    height = browser.run("document.documentElement.scrollHeight")
    assert browser.run("document.documentElement.scrollWidth") <= 390
    for place in range(0, height, 600):
        browser.run(f"window.scrollTo(0, {place})")
        time.sleep(0.05)
    count = "document.querySelectorAll('figure').length"
    browser.wait(f"document.querySelectorAll('figure canvas').length === {count}")
    assert browser.run("document.documentElement.scrollHeight") == height
    assert browser.run("document.documentElement.scrollWidth") <= 390
