"""The rows of a page, and their way into the browser."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from browser import CHROMIUM, Browser
from pages import TEXTS, awaited, random_record, random_update, recorded, write_page
from record_rows import dropped, write_records

from rlobj.base.arrow import pc
from rlobj.base.errors import ConfigError
from rlobj.base.targets import without_imports
from rlobj.insight.opening import OpenRun
from rlobj.insight.page.rows import PageRows, read_rows, whole_rows, with_parts
from rlobj.insight.page.writing import write_inspection_page
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import read_rule
from rlobj.runs.columns import SCHEMA
from rlobj.runs.layout import rank_table
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.tables import UpdateTable, write_tables

needs_browser = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")


def write_step(run: Path, step: int, update: UpdateTable) -> Path:
    """A full table with one update of a step."""
    table, objective = update.table, update.objective
    plan = objective.plan([table], update.state, clauses=True)
    policy = (getattr(table, name) for name in ("logprobs", "entropy", "collision"))
    unknown = torch.full_like(table.logprobs, torch.nan)
    observed = ObservedUpdate(
        objective, update.state, table, plan, update.sequences, *policy, unknown
    )
    run.mkdir(exist_ok=True)
    (run / "config.resolved.yaml").touch()
    write_tables(run, step, [(update.update, observed)], (0, 1), {})
    return rank_table(run, step, 0)


def count(page: PageRows) -> int:
    """The number of tokens that count."""
    return int(pc.sum(page.rows["in_phase"]).as_py())


def test_full_tables_show_all_tokens_of_decided_responses_with_their_weights(tmp_path):
    update = random_update((3, 1), 24, 0)
    write_step(tmp_path, 3, update)
    page = read_rows(tmp_path)
    table = update.table
    assert count(page) == int(table.decided.sum())
    rows = page.rows
    weights = update.objective.plan([table], update.state).weights[0][table.decided]
    assert torch.equal(torch.tensor(rows["weight"].to_numpy().copy()), weights)
    assert page.updates == [{"step": 3, "update": 1}]
    assert "Only steps with full tables are shown" in page.notes[0]


def test_the_parts_of_the_rules_hold_where_the_objective_drops(tmp_path: Path) -> None:
    update = random_update((3, 1), 24, 0)
    dropping = Objective(columns={"stage": "token"}).drop("(prob < 0.5) & entropy.bottom(0.8)")
    rules = [read_rule("prob < 0.5"), read_rule("entropy.bottom(0.8)")]
    rows = whole_rows(UpdateTable(**{**vars(update), "objective": dropping}), TEXTS, rules)
    held = [rows[f"holds:{rule}"].to_pylist() for rule in rules]
    effects = [effect == "dropped" for effect in rows["effect"].to_pylist()]
    assert effects == [all(pair) for pair in zip(*held, strict=True)]
    assert len({*zip(*held, strict=True)}) == 4
    recorded = pyarrow.table({"prob": [0.1, 0.9, None], "entropy": [1.0, 1.0, 1.0]})
    found = with_parts(recorded, rules)
    assert found.column_names == ["prob", "entropy", "holds:prob < 0.5"]  # a sample has no cuts
    assert found["holds:prob < 0.5"].to_pylist() == [True, False, None]


@pytest.mark.parametrize(
    "rule",
    [
        "prob < 0.5 or custom('mine.py:Rare', least=prob)",
        {"kind": "custom", "target": "mine.py:Rare", "names": ["a"]},
    ],
)
def test_the_page_of_a_run_imports_no_code(tmp_path: Path, rule) -> None:
    write_step(tmp_path, 1, random_update((1, 1), 24, 0))
    settings = {"objective": {"drop": rule}}
    (tmp_path / "config.resolved.yaml").write_text(json.dumps(settings))  # and no mine.py
    page = read_rows(tmp_path)
    assert [name for name in page.rows.column_names if "Rare" in name] == []
    assert "mine.py:Rare" in write_inspection_page(tmp_path).read_text()
    with without_imports(), pytest.raises(ConfigError, match="is not imported here"):
        Objective(drop=rule).plan([random_update((1, 1), 24, 0).table])


def test_a_token_of_another_phase_is_shown_and_counts_nothing(tmp_path: Path) -> None:
    update = random_update((1, 1), 24, 0)
    first, rest = Objective(columns={"stage": "token"}).split("entropy > 0.5").phases
    tables = [UpdateTable(**{**vars(update), "objective": phase}) for phase in (first, rest)]
    pages = [PageRows(whole_rows(each, TEXTS), [], []) for each in tables]
    assert len(pages[0].rows) == len(pages[1].rows)
    assert sum(map(count, pages)) == int(update.table.decided.sum())


def test_the_newest_full_tables_are_whole_and_older_steps_show_their_records(tmp_path):
    updates = {step: random_update((step, 1), 24, step) for step in (1, 2, 3)}
    for step, update in updates.items():
        write_step(tmp_path, step, update)
    write_records(tmp_path, [dropped(step=step, position=step) for step in (1, 2, 3, 4)])
    budget = len(updates[3].table) + len(updates[2].table) + 30
    page = read_rows(tmp_path, budget)
    assert [each["step"] for each in page.updates] == [3, 2]
    assert set(page.rows.filter(pc.equal(page.rows["step"], 1))["position"].to_pylist()) == {1}
    assert "of the full tables of step 1 it has the recorded tokens only" in page.notes[0]
    steps = page.rows["step"].to_pylist()
    assert steps == sorted(steps)
    assert set(steps) == {1, 2, 3, 4}


def test_too_many_recorded_tokens_leave_the_oldest_steps_out(tmp_path: Path) -> None:
    rows = [dropped(response=i, step=step) for i in range(400) for step in (1, 2, 3)]
    write_records(tmp_path, rows, more=7)
    page = read_rows(tmp_path, 1000)
    assert {*page.rows["step"].to_pylist()} == {2, 3}
    assert len(page.rows) == 800
    assert not page.touched
    assert "no place for the recorded tokens of 1 older step" in page.notes[0]
    assert [update.clauses[0].tokens for update in page.counts] == [407, 407, 407]


def test_a_full_table_that_is_too_large_is_not_read_and_smaller_older_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = {step: random_update((step, 1), size, step) for step, size in ((1, 9), (2, 60))}
    for step, update in updates.items():
        write_step(tmp_path, step, update)
    write_records(tmp_path, [dropped(step=2)])
    read, tables = [], OpenRun.tables
    monkeypatch.setattr(OpenRun, "tables", lambda *a: read.append(a[1]) or tables(*a))
    page = read_rows(tmp_path, len(updates[1].table) + 5)
    assert read == [1]
    assert [each["step"] for each in page.updates] == [1]
    assert {*page.rows["step"].to_pylist()} == {1, 2}
    assert "of the full tables of step 2 it has the recorded tokens only" in page.notes[0]


def test_the_newest_step_is_cut_where_it_alone_has_too_many_recorded_tokens(tmp_path: Path) -> None:
    rows = [dropped(response=i, step=step) for step in (1, 2) for i in range(20)]
    write_records(tmp_path, rows)
    page = read_rows(tmp_path, 15)
    assert page.rows["step"].to_pylist() == [2] * 15
    assert page.rows["response"].to_pylist() == [*range(15)]
    assert not page.touched
    assert page.notes[1] == "Of step 2, the page has the first 15 recorded tokens."


def test_a_damaged_full_table_is_noted_and_its_step_shows_the_record(tmp_path: Path) -> None:
    file = write_step(tmp_path, 3, random_update((3, 1), 9, 0))
    file.write_bytes(file.read_bytes()[:-9])
    write_records(tmp_path, [dropped(step=3)])
    page = read_rows(tmp_path)
    assert len(page.rows) == 1
    assert "Step 3 shows its recorded tokens only" in page.notes[0]
    assert "not a whole Parquet file" in page.notes[0]


def test_damaged_records_and_runs_without_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        read_rows(tmp_path / "none")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.resolved.yaml").touch()
    with pytest.raises(ConfigError, match="has no records: no step has one yet"):
        read_rows(run)  # ended after step 0
    file = write_records(run, [dropped()])
    file.write_bytes(file.read_bytes()[:-9])
    write_step(run, 3, random_update((3, 1), 9, 0))
    with pytest.raises(ConfigError, match=r"step-000001\.parquet is not a whole Parquet file"):
        read_rows(run)


def test_texts_come_from_the_record_where_the_tokenizer_is_gone(tmp_path: Path) -> None:
    write_step(tmp_path, 3, random_update((3, 1), 24, 0))
    write_records(tmp_path, [dropped(step=2, token=0, text="zero")])
    rows = read_rows(tmp_path).rows
    pairs = set(zip(rows["token"].to_pylist(), rows["text"].to_pylist(), strict=True))
    assert {(0, "zero"), (1, "⟨1⟩")} <= pairs
    assert "⟨1⟩⟨2⟩" in rows["prompt"].to_pylist()


@needs_browser
def test_numbers_arrive_to_the_bit(browser: Browser, tmp_path: Path) -> None:
    table = random_record(500, 3)
    special = np.array([-0.0, np.inf, -np.inf, 1e-45, 3.4e38] * 100, np.float32)
    place = table.schema.get_field_index("entropy")
    table = table.set_column(place, "entropy", pyarrow.array(special))
    page = recorded(table)
    browser.open(write_page(tmp_path / "page.html", page))
    order = [(name, "ascending") for name in ("step", "update", "group", "response")]
    for field in SCHEMA:
        script = "store.load([%r]).then(() => Array.from(store.column(%r), (x) => %s))"
        if field.type == pyarrow.string():
            found = awaited(
                browser, script % (field.name, field.name, f"store.values({field.name!r})[x]")
            )
            assert found == page.rows.sort_by(order)[field.name].to_pylist(), field.name
            continue
        bits = "new Int32Array(Float32Array.of(x).buffer)[0]"
        found = awaited(browser, script % (field.name, field.name, bits))
        expected = table[field.name].to_pandas().astype("float32").to_numpy()
        unknown = np.isnan(expected)
        assert (np.array(found)[~unknown] == expected.view(np.int32)[~unknown]).all(), field.name
        assert (np.array(found, np.int32).view(np.float32)[unknown] != 0).all(), field.name
