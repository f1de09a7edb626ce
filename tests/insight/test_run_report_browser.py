"""The report in headless Chromium."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from browser import CHROMIUM, NAMES, Browser
from report_runs import HOSTILE, evaluation, step_line, write_run

import rlobj

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(NAMES)} is installed"),
]

READY = "document.body.dataset.ready !== undefined"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: rewards 0.1 to 0.9 with a finding, and 0.5 with only hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    ratio = {"policy/kl_old": 200.0}
    lines = [
        step_line(i, **{"reward/mean": i / 10, "train/grad_norm": 1e20 if i == 3 else 1.0}, **ratio)
        for i in range(1, 10)
    ]
    first = write_run(folder / "first", [evaluation(0, 0.5), *lines])
    name = f"reward/{HOSTILE}/mean"
    second = write_run(
        folder / HOSTILE.replace("/", "|"),
        [step_line(i, **{"reward/mean": 0.5, name: i / 10}) for i in range(1, 6)],
        {"drop": HOSTILE, "controllers": {"W": {"target": 0.3}}},
        preset=HOSTILE,
    )
    return rlobj.report([first, second])


def option(name: str, part: str) -> str:
    """A part of what ECharts draws in a figure."""
    plot = f"document.querySelector('#figure-{name} .plot')"
    return f"echarts.getInstanceByDom({plot}).getOption().{part}"


def test_hostile_names_are_text_and_do_nothing(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait(READY)
    names = "document.querySelector('thead').textContent"
    assert "<img src=x onerror" in browser.run(names)
    assert "<img src=x onerror" in browser.run(option("rewards", "series[0].name"))
    assert browser.run("window.broken === undefined")
    assert browser.run("document.querySelectorAll('main img, main script').length") == 0
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_all_figures_share_zoom_and_hidden_runs(browser, page):
    browser.resize(1280, 1600)
    browser.open(page)
    browser.wait(READY)
    assert browser.run(option("reward", "series[0].data.map(([, y]) => y)"))[6:] == [0.7, 0.8, 0.9]
    chart = "echarts.getInstanceByDom(document.querySelector('.plot'))"
    browser.run(f"{chart}.dispatchAction({{type: 'dataZoom', startValue: 3, endValue: 5}})")
    zoom = option("entropy", "dataZoom[0]")
    browser.wait(f"(z => z.startValue === 3 && z.endValue === 5)({zoom})")
    names = option("entropy", "series.filter(({data}) => data.length).map(({name}) => name)")
    assert browser.run(names)[0] == "first"
    browser.run(f"{chart}.dispatchAction({{type: 'legendToggleSelect', name: 'first'}})")
    browser.wait(f"{option('entropy', 'legend[0].selected.first')} === false")
    assert browser.complaints() == []


def test_the_page_fits_a_phone_and_names_its_findings_in_the_figures(browser, page):
    browser.resize(390, 800)
    browser.open(page)
    browser.wait(READY)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    marks = option("kl", "series.at(-1).markLine.data.map(({name, xAxis}) => [name, xAxis])")
    assert browser.run(marks) == [["update-too-large", 3]]


def test_two_figures_stand_side_by_side_on_paper(browser: Browser, page: Path) -> None:
    browser.resize(800, 1000)
    browser.open(page)
    browser.wait(READY)
    count = browser.run("document.querySelectorAll('figure').length")
    printed = browser.send("Page.printToPDF", printBackground=True)
    sheets = len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed["data"])))
    assert count > 4
    assert sheets <= 2 + (count + 1) // 6  # six figures on each, and the tables
    browser.wait("document.querySelector('.plot canvas').clientWidth > 600")  # as before
