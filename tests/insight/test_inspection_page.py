"""The page of `rlobj inspect RUN --html` in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import CHROMIUM, Browser
from pages import awaited
from record_rows import write_records

from rlobj import write_inspection_page
from rlobj.base.yaml import dump_yaml
from rlobj.insight.filtering import matching, read_filter
from rlobj.insight.page.rows import read_rows
from rlobj.objectives.tokens import TokenBatch
from rlobj.runs.columns import COLUMNS
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.tables import write_tables
from rlobj.settings.presets import load_preset

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

HOSTILE = (
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 2'>",
    "javascript:window.broken=3",
    "\u202e\u2066evil\x1b[31m\r\n\t ",
    "x" * 10_000,
    "שלום",
    "__proto__",
    "${7*7}{{7*7}}<!--",
)
TEXTS = (*HOSTILE, "7", "+", " the", "\n")
STEP, PER_GROUP, LENGTH = 2, 4, 12
HIDDEN = ("schema_version", "text", "before", "after", "kept", "value")
"""Columns that the panel shows in another way; `value` is one of runs that train one."""
RANGES = {"range:advantage": "0.001..", "range:prob": "..0.002"}

EFFECTS = ("dropped", "masked", "reweighted", "switched", "penalised")
OBJECTIVE = load_preset("stapo").objective


def write_table(run: Path) -> None:
    """A full table of two groups of four responses, whose tokens are all of `TEXTS`."""
    generator = torch.Generator().manual_seed(0)
    size = 2 * PER_GROUP * LENGTH
    logprobs = -torch.rand(size, generator=generator)
    entropy = torch.rand(size, generator=generator)
    collision, sensitivity = torch.full((size,), 0.5), torch.zeros(size)
    logprobs[5], entropy[5] = -8.0, 0.01  # its response was right: the rule drops it
    [table] = OBJECTIVE.with_advantages(
        [
            TokenBatch(
                lengths=torch.full((2 * PER_GROUP,), LENGTH),
                groups=torch.arange(2 * PER_GROUP) // PER_GROUP,
                rollouts=torch.tensor([0, 1, 2, 0, 4, 5, 6, 7]),
                ids=torch.arange(2 * PER_GROUP),
                rewards=torch.tensor([1.0, 0, 0, 1] * 2),
                versions=torch.arange(size) % LENGTH // 4,  # three in each response
                version=STEP + 1,
                logprobs=logprobs,
                old_logprobs=logprobs,
                sampler_logprobs=logprobs,
                entropy=entropy,
                collision=collision,
                entropy_sensitivity=sensitivity,
                columns={"spurious": (torch.arange(size) % 7 == 5).float()},
            )
        ]
    )
    plan = OBJECTIVE.plan([table], {}, clauses=True)
    ids = [list(range(LENGTH)) for _ in range(2 * PER_GROUP)]
    columns = (logprobs, entropy, collision, sensitivity)
    sequences = [([8, 9], each) for each in ids]
    began = ["", "", "", "restart", *[""] * PER_GROUP]
    seen = ObservedUpdate(OBJECTIVE, {}, table, plan, sequences, *columns, began)
    write_tables(run, STEP, [(1, seen)], (0, 1), {})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in progress: step 1 has a record, step 2 a full table."""
    folder = tmp_path_factory.mktemp("runs") / "<img src=x onerror=window.broken=4>"
    rows: list[dict[str, Any]] = [
        {"text": text, "token": i, "before": text, "after": text[::-1], "position": i}
        for i, text in enumerate(TEXTS)
    ]
    for row, effect in zip(rows, EFFECTS, strict=False):
        row.update(effect=effect, clause="prob < 0.5 " + HOSTILE[0], spurious=True)
    write_records(folder, rows)
    settings = {"preset": HOSTILE[1], "objective": OBJECTIVE.model_dump(mode="json", by_alias=True)}
    (folder / "config.resolved.yaml").write_text(dump_yaml(settings))
    lines = [{"step": 1, "tokens/step": 112}, {"step": STEP, "tokens/step": 96}]
    written = "\n".join(map(json.dumps, lines))
    (folder / "metrics.jsonl").write_text(
        written + '\n{"step": 7, "tokens/step": NaN}\n{"step": 3, "tok'
    )
    write_table(folder)
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    return write_inspection_page(run)


def show(browser: Browser, page: Path, **state: str | int) -> None:
    """Open the page anew, and wait until its view is drawn."""
    browser.open(page)
    browser.wait("document.querySelector('#group-responses .piece')")
    enter(browser, **state)
    drawn = {"planes": "#plane-chart canvas", "tokens": "#texts td"}
    kind = drawn.get(state.get("view", ""), "#group-responses .piece")
    browser.wait(f"document.querySelector('{kind}')")


def enter(browser: Browser, **state: str | int) -> None:
    """Other fields of the filter, and wait until they were read."""
    awaited(browser, f"(go({json.dumps(state)}), applyFilter())")


def test_the_rows_of_a_rollout_stand_together_each_with_what_began_it(browser, page):
    show(browser, page, step="2", group="0")
    script = "[...document.querySelectorAll('article')].map((each) => each.textContent)"
    cards = browser.run(script)
    titles = ["response 0", "rollout 0, row 1: restart", "response 1", "response 2"]
    assert all(card.startswith(title) for card, title in zip(cards, titles, strict=True))
    prompts = browser.run("document.querySelectorAll('article .heard').length")
    assert prompts == 1  # that of the new context


def text_of(browser: Browser, selector: str) -> str:
    return browser.run(f"document.querySelector('{selector}').textContent")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_hostile_texts_run_nothing_and_every_view_fits_its_window(browser, page, width, scheme):
    browser.resize(width, 844, scheme)
    for view in ("responses", "planes", "tokens"):
        show(browser, page, view=view, step="1", text=HOSTILE[0] if view == "tokens" else "")
        if view == "responses":
            browser.run("document.querySelector('#group-responses .piece').click()")
            browser.wait("byId('details-title').textContent !== 'No token chosen'")
            shown = text_of(browser, "#group-responses").replace("·", " ")
            assert all(each in shown for each in (HOSTILE[0], HOSTILE[1], "‹202e›", "␛", "↵"))
        if view == "tokens":
            browser.wait("document.querySelector('#in-context .piece')")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("typeof window.broken") == "undefined"
        strange = "img, iframe, object, svg, main script"
        assert browser.run(f"document.querySelectorAll('{strange}').length") == 0
        assert browser.complaints() == []
        assert [url for url in browser.requests() if not url.startswith(page.as_uri())] == []
    assert "<img src=x onerror" in text_of(browser, "h1")


def test_the_filter_finds_what_the_rules_of_python_find_and_counts_it(browser, page):
    rows = read_rows(page.parent).rows
    show(browser, page)
    for name, text, rule in (
        ("prob", "..0.5", "prob <= 0.5"),
        ("entropy", "0.25..0.75", "(entropy >= 0.25) & (entropy <= 0.75)"),
        ("position", "3..", "position >= 3"),
        ("spurious", "1..", "spurious > 0"),
        ("kept", "..0", "kept < 1"),
        ("reward", "1..1", "(reward >= 1) & (reward <= 1)"),
    ):
        enter(browser, **{f"range:{name}": text})
        kept = matching(read_filter(rule), rows).to_pylist()
        assert 0 < sum(kept) < len(rows), rule
        assert browser.run("[...chosen.mask].map(Boolean)") == kept, rule
        assert text_of(browser, "#found").startswith(f"{sum(kept)} of {len(rows)} tokens of this")
        enter(browser, **{f"range:{name}": ""})
    for text, step, found in (("7+", "2", [8, 9]), ('"7"', "2", [8])):
        enter(browser, text=text, **{"from": step, "to": step})
        first = "store.responses.find((each) => each.step === Number(state.from)).start"
        place = f"[...chosen.mask.keys()].filter((row) => chosen.mask[row]).map((r) => r - {first})"
        assert [row for row in browser.run(place) if row < LENGTH] == found, text
    enter(browser, text="", to="", **RANGES, **{"from": "2"})
    assert text_of(browser, "#found") == "1 of 96 tokens of this page (1.0%) in 1 response"
    browser.run("byId('from').value = 2; byId('reset').click()")
    browser.wait(f"byId('found').textContent === '{len(rows)} tokens of this page'")


def test_tokens_have_a_colour_for_the_age_of_the_weights_that_drew_them(browser, page):
    show(browser, page, step="2")
    browser.run("go({color: 'staleness'})")
    browser.wait("byId('legend').textContent.endsWith('3')")
    shades = "[...document.querySelectorAll('#group-responses .flow')].map((each) => "
    shades += (
        "[...each.querySelectorAll('.piece')].map((x) => x.style.getPropertyValue('--shade')))"
    )
    each = ["100%"] * 4 + ["67%"] * 4 + ["33%"] * 4
    assert browser.run(shades) == [each] * PER_GROUP


def test_a_token_says_which_clause_fired_and_the_plane_where_its_bounds_are(browser, page):
    row = "store.responses.find((each) => each.step === %d && each.response === 0).start"
    show(browser, page, step="2")
    browser.run(f"go(placeOf({row % 2} + 5))")
    browser.wait("byId('details-body').textContent.includes('✓')")
    shown = text_of(browser, "#details-body")
    assert [name for name in COLUMNS if name not in shown and name not in HIDDEN] == []
    parts = "[...document.querySelectorAll('.rules div')].map((each) => each.textContent)"
    assert browser.run(parts)[1:] == ["advantage > 0✓", "prob < 0.002✓", "entropy.bottom(0.8)✓"]
    show(browser, page, step="1")
    browser.run(f"go(placeOf({row % 1}))")
    browser.wait("byId('details-body').textContent.includes('?')")
    assert browser.run(parts)[3] == "entropy.bottom(0.8)?"  # not all tokens are there
    assert "prob < 0.5 </script>" in text_of(browser, ".verdict")
    show(browser, page, view="planes", **RANGES)
    assert browser.run("bounds().map(({text}) => text)") == [
        "drop: prob < 0.002",
        "drop: entropy.bottom(0.8)",
    ]
    browser.run("go({cell: drawn.keys[0]})")
    assert "tokens 1, touched 1" in text_of(browser, "#cell")
    browser.run("document.querySelector('#cell-tokens button').click()")
    browser.wait("document.querySelector('.here.dropped')")
    browser.run("document.querySelector('[data-view=tokens]').click()")
    browser.wait("document.querySelectorAll('#texts tbody tr').length === 1")
    assert "dropped by (advantage > 0) & (prob < 0.002)" in text_of(browser, "#texts .by")
