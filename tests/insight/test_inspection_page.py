"""The page of `rlobj inspect RUN --html` in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from browser import CHROMIUM, Browser
from pages import awaited
from record_rows import dropped, write_records

from rlobj import write_inspection_page
from rlobj.base.arrow import pc
from rlobj.base.yaml import dump_yaml
from rlobj.insight.filtering import matching, read_filter
from rlobj.insight.page.rows import read_rows
from rlobj.objectives.tokens import TokenBatch
from rlobj.runs.columns import COLUMNS
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.reading import Design
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
HIDDEN = ("schema_version", "text", "before", "after", "kept")
"""Columns that the panel shows in another way."""
IDS = ("schema_version", "step", "update", "group", "response", "token")
JUMPED = "jumps.splice(0).reduce((sum, each) => sum + each, 0)"
"""The layout shift since it was last asked for: the share of the window that moved."""
RANGES = {"range:advantage": "0.001..", "range:prob": "..0.002"}

EFFECTS = ("dropped", "masked", "reweighted", "switched", "penalised")
OBJECTIVE = load_preset("stapo").objective


def write_table(run: Path, logprob: float = -8.0) -> None:
    """A full table of two groups of four responses, whose tokens are all of `TEXTS`."""
    generator = torch.Generator().manual_seed(0)
    size = 2 * PER_GROUP * LENGTH
    logprobs = -torch.rand(size, generator=generator)
    entropy = torch.rand(size, generator=generator)
    collision, sensitivity = torch.full((size,), 0.5), torch.zeros(size)
    logprobs[5], entropy[5] = logprob, 0.01  # its response was right: the rule drops -8
    [table] = OBJECTIVE.with_advantages(
        [
            TokenBatch(
                lengths=torch.full((2 * PER_GROUP,), LENGTH),
                groups=torch.arange(2 * PER_GROUP) // PER_GROUP,
                ids=torch.arange(2 * PER_GROUP),
                rewards=torch.tensor([1.0, 0, 0, 1] * 2),
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
    seen = ObservedUpdate(OBJECTIVE, {}, table, plan, [([8, 9], each) for each in ids], *columns)
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
    rows.append({"text": "7", "position": 99, "inclusion_probability": 0.01, "spurious": False})
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


def show(browser: Browser, page: Path, **state: str) -> None:
    """Open the page anew, and wait until its view is drawn."""
    browser.open(page, f"#{urlencode(state)}")
    drawn = {"planes": "#plane-chart canvas", "tokens": "#texts td"}
    kind = drawn.get(state.get("view", ""), "#group-responses .piece")
    browser.wait(f"document.querySelector('{kind}')")


def enter(browser: Browser, **state: str) -> None:
    """Other fields of the filter, and wait until they were read."""
    awaited(browser, f"(go({json.dumps(state)}), applyFilter())")


def drawn(browser: Browser) -> None:
    """Wait until the page was drawn again."""
    awaited(browser, "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")


def text_of(browser: Browser, selector: str) -> str:
    return browser.run(f"document.querySelector('{selector}').textContent")


def quiet(browser: Browser, page: Path) -> None:
    """Nothing ran, nothing was asked for, and nothing was complained about."""
    assert browser.run("typeof window.broken") == "undefined"
    assert (
        browser.run("document.querySelectorAll('img, iframe, object, svg, main script').length")
        == 0
    )
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(page.as_uri())] == []
    assert not [e for e in browser.events if e.get("method") == "Page.javascriptDialogOpening"]


@pytest.mark.parametrize(
    ("view", "step"),
    [
        ("responses", "1"),
        pytest.param("responses", "2", marks=pytest.mark.slow),
        pytest.param("planes", "2", marks=pytest.mark.slow),
        pytest.param("tokens", "1", marks=pytest.mark.slow),
    ],
)
def test_hostile_texts_are_shown_as_text_and_run_nothing(browser, page, view, step):
    for text in HOSTILE if view == "tokens" else HOSTILE[:1]:
        show(browser, page, view=view, step=step, word=text, text=text, plane="surprisal")
        if view == "responses":
            browser.run("document.querySelector('#group-responses .piece').click()")
            browser.wait("byId('details-title').textContent !== 'No token chosen'")
            shown = text_of(browser, "#group-responses").replace("·", " ")
            assert all(each in shown for each in (HOSTILE[0], HOSTILE[1], "‹202e›", "␛", "↵"))
        if view == "tokens":
            browser.wait("document.querySelector('#word-tokens .piece')")
        quiet(browser, page)
    assert "<img src=x onerror" in text_of(browser, "h1")


def test_the_page_opens_on_touched_tokens(browser: Browser, tmp_path: Path) -> None:
    """Those of a record, where the full table has none."""
    write_records(tmp_path, [{"text": "a", "effect": "dropped", "clause": "prob < 0.5"}])
    settings = {"objective": OBJECTIVE.model_dump(mode="json", by_alias=True)}
    (tmp_path / "config.resolved.yaml").write_text(dump_yaml(settings))
    for logprob, step in ((-0.1, "1"), (-8.0, "2")):
        write_table(tmp_path, logprob)
        show(browser, write_inspection_page(tmp_path))
        assert browser.run("byId('step').value") == step
        assert "1 touched" in browser.run("byId('group').selectedOptions[0].textContent")


def test_the_filter_counts_tokens_and_judges_them(browser: Browser, page: Path) -> None:
    show(browser, page, step="2")
    assert text_of(browser, "#found") == "208 tokens"
    assert browser.run("byId('reset').disabled")
    enter(browser, **RANGES, **{"from": "2"})
    assert text_of(browser, "#found") == (
        "1 of 96 tokens (1.0%) in 1 response · precision 100% · recall 7.7%"
    )
    browser.wait("document.querySelectorAll('#group-responses .match').length === 1")
    browser.run("byId('reset').click()")
    browser.wait("byId('found').textContent === '208 tokens' && byId('reset').disabled")
    enter(browser, text='"7"')
    assert text_of(browser, "#found").startswith("≈ 109 ± 99 of 208 tokens")


def test_a_range_keeps_what_python_keeps(browser: Browser, page: Path) -> None:
    rows = read_rows(page.parent).rows
    rows = rows.filter(pc.greater_equal(rows["position"], 0))
    show(browser, page)
    for name, text, rule in (
        ("prob", "..0.5", "prob <= 0.5"),
        ("entropy", "0.25..0.75", "(entropy >= 0.25) & (entropy <= 0.75)"),
        ("position", "3..", "position >= 3"),
        ("spurious", "1..", "spurious > 0"),
        ("spurious", "..0", "spurious < 1"),
        ("kept", "..0", "kept < 1"),
        ("reward", "1..1", "(reward >= 1) & (reward <= 1)"),
    ):
        enter(browser, **{f"range:{name}": text})
        kept = matching(read_filter(rule), rows).to_pylist()
        assert 0 < sum(kept) < len(rows), rule
        assert browser.run("[...chosen.mask].map(Boolean)") == kept, rule
        enter(browser, **{f"range:{name}": ""})


def test_each_number_has_a_slider_whose_ends_are_those_of_the_column(browser, page):
    show(browser, page)
    browser.wait("!document.querySelector('.ends [placeholder=\" \"]')")
    names = browser.run("[...document.querySelectorAll('.range')].map((e) => e.ariaLabel)")
    numbers = [name for name, column in COLUMNS.items() if column.type != "string"]
    assert {name.replace("_", " ") for name in numbers if name not in IDS} <= {*names}
    move = """(() => {
      const [from, to] = document.querySelectorAll('.slider input');
      Object.assign(%s, {value: %s}).dispatchEvent(new Event('input', {bubbles: true}));
    })()"""
    browser.run(move % ("to", 0.5))
    browser.wait("state['range:prob'].startsWith('..')")
    bound = float(browser.run("state['range:prob'].slice(2)"))
    least = browser.run("sliderOf('prob').ends[0]")
    assert bound == pytest.approx(least**0.5, rel=0.1)  # half of a logarithmic scale
    browser.run(move % ("from", 0.9))  # no handle passes the other
    browser.wait(f"state['range:prob'] === '{bound}..{bound}'")
    browser.run(move % ("from", 0))
    browser.run(move % ("to", 1))
    browser.wait("state['range:prob'] === ''")


def test_a_text_is_found_across_tokens_and_in_the_context_of_recorded_ones(browser, page):
    show(browser, page)
    for text, step, found in (("7+", "2", [8, 9]), ('"7"', "2", [8]), ("77", "1", [8])):
        enter(browser, text=text, **{"from": step, "to": step})
        first = "store.responses.find((each) => each.step === Number(state.from)).start"
        place = f"[...chosen.mask.keys()].filter((row) => chosen.mask[row]).map((r) => r - {first})"
        assert [row for row in browser.run(place) if row < LENGTH] == found, text


def test_what_a_sample_lacks_is_unknown_and_not_zero(browser: Browser, tmp_path: Path) -> None:
    rows = [{"position": i, "inclusion_probability": 0.01, "advantage": -1.0} for i in range(2)]
    run = tmp_path / "run"
    write_records(run, [*rows, dropped(position=9, spurious=True)], design=Design(0, 1, [1]))
    (run / "metrics.jsonl").write_text('{"step": 1, "tokens/step": 384}')
    path = write_inspection_page(run)
    show(browser, path)
    for field, text, found in (
        ("range:prob", "2..", "unknown: the page has 3 of 384 tokens, and none that the filter"),
        ("range:prob", "..0.1", "at least 1 of 384 tokens (0.26%) in ≥ 1 response · precision ≈ 1"),
        ("range:advantage", "..0", "≈ 200 ± 141 of 384 tokens (52%) in ≥ 1 response"),
        ("range:spurious", "1..", "1 of 384 tokens (0.26%) in 1 response · precision 100%"),
        ("effect", "dropped", "1 of 384 tokens (0.26%) in 1 response · precision 100% · recall 1"),
        ("effect", "untouched", "≈ 200 ± 141 of 384 tokens (52%)"),
        ("text", "nowhere", "unknown: the page has 3 of 384 tokens, and none that the filter"),
    ):
        enter(browser, **{field: text})
        assert text_of(browser, "#found").startswith(found), (field, text)
        enter(browser, **{field: ""})
    show(browser, path, view="tokens", **{"range:prob": "..0.1"})
    assert "at least 1 texts of tokens" in text_of(browser, "#texts caption")
    assert "≥ 1" in text_of(browser, "#texts tbody")


def test_the_panel_has_every_column_and_every_part_of_the_rule(browser, page):
    show(browser, page, step="2", at="2_1_0_5")
    browser.wait("byId('details-body').textContent.includes('✓')")
    shown = text_of(browser, "#details-body")
    assert [name for name in COLUMNS if name not in shown and name not in HIDDEN] == []
    parts = "[...document.querySelectorAll('.rules div')].map((each) => each.textContent)"
    assert browser.run(parts)[1:] == ["advantage > 0✓", "prob < 0.002✓", "entropy.bottom(0.8)✓"]
    show(browser, page, step="1", at="1_1_0_0")
    browser.wait("byId('details-body').textContent.includes('?')")
    assert browser.run(parts)[3] == "entropy.bottom(0.8)?"  # the record is a sample


def test_keys_move_from_token_to_token_and_from_match_to_match(browser, page):
    show(browser, page, step="2", group="0")
    browser.run("document.querySelector('#group-responses [tabindex=\"0\"]').focus()")
    where = "document.activeElement.dataset.row"
    rows = [browser.run(where)]
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
        browser.press(key)
        rows.append(browser.run(where))
    first = int(rows[0])
    assert [int(row) - first for row in rows[:4]] == [0, 1, 2, 1]
    assert int(rows[4]) > first + 1
    assert rows[5] == rows[3]
    browser.run("byId('text').value = '7'; byId('text').focus()")
    browser.press("Enter")
    browser.wait("document.activeElement.matches('.here.match')")
    found = int(browser.run(where))
    browser.press("ArrowRight")
    assert int(browser.run(where)) == found + 1
    browser.run("byId('text').focus()")
    browser.press("Escape")
    assert browser.run("byId('text').value") == "7"
    assert browser.run("document.activeElement === document.body")


def test_an_address_shows_the_same_again(browser: Browser, page: Path) -> None:
    show(browser, page, step="2")
    browser.run("byId('color').value = 'entropy'; byId('color').dispatchEvent(new Event('change'))")
    enter(browser, text="7", **{"range:entropy": "0.1..0.75"})
    browser.run("document.querySelectorAll('#group-responses .piece')[3].click()")
    browser.wait("location.hash.includes('at=') && location.hash.includes('range')")
    address = browser.run("location.hash")
    seen = "[byId('found').textContent, document.querySelector('.here')?.dataset.row,"
    seen += "byId('color').value, byId('text').value, fields.get('range:entropy').read(),"
    seen += "document.querySelectorAll('.match').length].join()"
    before = browser.run(seen)
    browser.open(page, address)
    browser.wait(f"{seen} === {json.dumps(before)}")


def test_a_cell_of_a_plane_lists_its_tokens(browser: Browser, page: Path) -> None:
    show(browser, page, view="planes", **RANGES, **{"from": "2"})
    browser.run("byId('plane-chart').focus()")
    for key in ("ArrowLeft", "Enter"):
        browser.press(key)
    browser.wait("document.querySelector('#cell-tokens a')")
    assert "tokens 1, touched 1" in text_of(browser, "#cell")
    assert browser.run("document.querySelectorAll('#cell-tokens tbody tr').length") == 1
    assert browser.run("bounds().map(({text}) => text)") == [
        "drop: prob < 0.002",
        "drop: entropy.bottom(0.8)",
    ]
    browser.run("document.querySelector('#cell-tokens a').click()")
    browser.wait("document.querySelector('.here.dropped')")
    quiet(browser, page)


def test_token_texts_are_sorted_and_lead_to_their_steps_and_responses(browser, page):
    show(browser, page, view="tokens")
    first = "document.querySelector('#texts tbody th').textContent"
    assert browser.run("document.querySelectorAll('#texts tbody tr').length") == len(EFFECTS) + 1
    browser.run("document.querySelector('#texts thead th:nth-child(4) button').click()")
    browser.wait("document.querySelector('[aria-sort=descending]').textContent === 'prob'")
    assert browser.run(first) != "שלום"  # the dropped one of step 2 has the lowest probability
    browser.run("document.querySelector('#texts tbody a').click()")
    browser.wait(
        "document.querySelector('#word-chart canvas') && document.querySelector('#word a')"
    )
    browser.run("document.querySelector('#word-tokens a').click()")
    browser.wait("document.querySelector('.here')")
    browser.run("history.back()")
    browser.wait("!byId('tokens').hidden")
    quiet(browser, page)


@pytest.mark.parametrize(
    ("width", "scheme"), [pytest.param(1280, "light", marks=pytest.mark.slow), (390, "dark")]
)
def test_nothing_jumps_and_nothing_is_wider_than_the_window(browser, page, width, scheme):
    browser.resize(width, 844, scheme)
    for view in ("responses", "planes", "tokens"):
        show(browser, page, view=view, step="2", word="7")
        if view == "tokens":
            browser.wait("document.querySelector('#word-tokens a')")
        assert browser.run("document.documentElement.scrollWidth") <= width
        browser.run(
            "window.jumps = []; new PerformanceObserver((list) => jumps.push(..."
            "list.getEntries().map(({value}) => value))"
            ").observe({type: 'layout-shift', buffered: true})"
        )
        drawn(browser)
        assert browser.run(JUMPED) < 0.05  # while it opened
        box = "JSON.stringify(byId('details').getBoundingClientRect())"
        before = browser.run(box)
        for row in (3, 5):
            awaited(browser, f"showDetails({row})")
            drawn(browser)
        assert browser.run(JUMPED) < 0.001
        enter(browser, **{"range:prob": "..0.5", "range:entropy": "0.1.."})
        drawn(browser)
        assert browser.run(JUMPED) < 0.005 or view == "tokens"  # its table has other lines
        assert browser.run(box) == before
        quiet(browser, page)


def test_a_long_response_is_drawn_only_near_the_window(browser: Browser, tmp_path: Path) -> None:
    rows = [{"position": i, "text": " word"} for i in range(9_000)]
    write_records(tmp_path, rows)
    path = write_inspection_page(tmp_path)
    show(browser, path, at="1_1_0_8500")
    browser.wait("document.querySelector('.here')?.getBoundingClientRect().top > 0")
    assert browser.run("document.querySelectorAll('#group-responses .piece').length") < 4_000
