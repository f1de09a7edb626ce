"""`rlobj.replay` on records: estimates with their errors, and what is read."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from record_rows import dropped, write_records
from replays import rows
from tiny import tiny_config

import rlobj
from rlobj import read_tables
from rlobj.base.errors import ConfigError
from rlobj.training import run_training


def sampled(run: Path) -> Path:
    """Eight tokens that stand for 29."""
    write_records(
        run,
        [
            dropped(spurious=True, gradient_norm=2.0),
            *[{"prob": 0.0001, "inclusion_probability": 0.25, "spurious": False}] * 5,
            {"prob": 0.5, "inclusion_probability": 0.25, "gradient_norm": None},
            {"prob": 0.5, "inclusion_probability": 0.25, "step": 2, "spurious": True},
        ],
    )
    return run


def test_records_give_estimates_with_their_standard_errors(tmp_path: Path) -> None:
    found = rlobj.replay(sampled(tmp_path), ["prob < 0.01"], sweep=None)
    assert not found.exact
    assert found.population == 29
    row = rows(found.objectives)["prob < 0.01"]
    assert (row["touched"], row["touched_error"]) == (21, pytest.approx(math.sqrt(5 * 12)))
    assert row["precision"] == pytest.approx(1 / 21)
    # precision = R = Σ y/p over Σ x/p; with p = 0.25 the residuals y − R·x are −R
    assert row["precision_error"] == pytest.approx(math.sqrt(5 * 12) / 21 / 21)
    assert row["recall"] == pytest.approx(1 / 5)
    assert row["carried"] == pytest.approx((2 + 20 * 0.5) / (2 + 24 * 0.5))
    named = rows(found.objectives)["recorded"]
    assert (named["touched"], named["dropped"], named["kept"]) == (1, 1, 28)
    assert "≈ 21 ± 8 tokens" in repr(found)
    [pair] = found.pairs.to_pylist()
    assert pair["overlap"] == pytest.approx(1 / 21)
    assert rlobj.replay(tmp_path, step=2).population == 4


def test_an_estimate_agrees_with_the_exact_numbers(policy: Path, tmp_path: Path) -> None:
    settings = {"training": {"steps": 1}, "output": {"tables_every": 1, "records_share": 0.2}}
    run_training(tiny_config(policy, "stapo", **settings), tmp_path)
    rule = "(prob < 0.05) & (entropy > 1)"
    exact = rows(rlobj.replay(tmp_path, rule).objectives)[rule]
    found = rows(rlobj.replay(tmp_path / "records", rule).objectives)[rule]
    assert exact["touched"] > 50
    for name in ("touched", "share", "carried"):
        assert found[f"{name}_error"] > 0
        assert abs(found[name] - exact[name]) < 4 * found[f"{name}_error"], name


def test_precision_is_unknown_where_too_few_sampled_tokens_are_selected(tmp_path: Path) -> None:
    rare = {"inclusion_probability": 0.01, "spurious": False}
    caught = [dropped(spurious=True)] * 40
    few, enough = ([*caught, *[{**rare, "prob": 0.02}] * n, {**rare, "prob": 0.9}] for n in (2, 5))
    write_records(tmp_path / "few", few)
    write_records(tmp_path / "enough", enough)
    found = rlobj.replay(tmp_path / "few", ["prob < 0.01", "prob < 0.1"])
    named = rows(found.objectives)
    assert named["prob < 0.01"]["precision"] is None
    assert named["prob < 0.1"]["precision"] is None
    assert named["recorded"]["precision"] == 1  # what it touches is in the record
    assert found.remarks[0].startswith("prob < 0.01: its precision is unknown, because it selects")
    assert found.remarks[1].startswith("prob < 0.1: its precision is unknown, because it selects")
    named = rows(rlobj.replay(tmp_path / "enough", "prob < 0.1").objectives)
    assert named["prob < 0.1"]["precision"] == pytest.approx(40 / 540)
    swept = rlobj.replay(tmp_path / "few", "prob < TAU", sweep={"TAU": [0.01, 0.1]})
    assert len(swept.remarks) == 1


def test_what_needs_whole_updates_is_refused_on_records(tmp_path: Path) -> None:
    run = sampled(tmp_path)
    found = rlobj.replay(run, ["grpo", "entropy.top(0.2)", "prob < 0.1"])
    assert "output.tables_every" in found.refused["grpo"]
    assert "depends on other tokens" in found.refused["entropy.top(0.2)"]
    swept = rlobj.replay(run, "prob < TAU", sweep="TAU=0.001..0.6:2").sweeps.to_pylist()
    assert [row["touched"] for row in swept] == [20, 29]


def test_estimates_have_a_band_in_the_figure(tmp_path: Path) -> None:
    figure = rlobj.replay(sampled(tmp_path), "prob < TAU", sweep="TAU=0.001..0.6:2").figure()
    share = figure.lines[0]
    assert share.low is not None
    assert share.low[0] < share.y[0] < share.high[0]


# What is read.


def test_files_folders_and_tables_are_read_alike(tmp_path: Path) -> None:
    run = sampled(tmp_path / "run")
    [file] = (run / "records").iterdir()
    table = parquet.read_table(file)
    foreign = tmp_path / "foreign.parquet"
    parquet.write_table(table.replace_schema_metadata(None), foreign)  # as pandas writes it
    expected = rlobj.replay(run, "prob < 0.01").objectives
    for source in (run / "records", file, str(foreign), table):
        assert rlobj.replay(source, "prob < 0.01").objectives.equals(expected)
    views = table.set_column(7, "text", table["text"].cast("string_view"))
    assert rlobj.replay(views, "prob < 0.01").objectives.equals(expected)
    unjudged = table.drop(["spurious", "clause", "before"])
    assert rows(rlobj.replay(unjudged, "prob < 0.01").objectives)["prob < 0.01"]["recall"] is None
    nulls = table.set_column(1, "step", [[1] * 7 + [None]])
    with pytest.raises(ConfigError, match="'step' is None in row 7"):
        rlobj.replay(nulls)
    large = table.set_column(1, "step", [[1] * 7 + [2**40]])
    with pytest.raises(ConfigError, match="'step' is no int32"):
        rlobj.replay(large)
    with pytest.raises(ConfigError, match="no column 'effect'"):
        rlobj.replay(table.drop(["effect"]), "prob < 0.01")
    with pytest.raises(ConfigError, match="is not a run: there is no such folder"):
        rlobj.replay(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="has no recorded token"):
        rlobj.replay(run, step=9)
    with pytest.raises(ConfigError, match="has no recorded token"):
        rlobj.replay([])


def test_full_tables_are_read_from_a_file_and_damaged_ones_are_refused(
    policy: Path, tmp_path: Path
) -> None:
    settings = {"training": {"steps": 2}, "output": {"tables_every": 1, "records_mb": 0}}
    run_training(tiny_config(policy, "stapo", **settings), tmp_path)
    whole = rlobj.replay(tmp_path)
    file = tmp_path / "tables" / "step-000002-rank-0.parquet"
    renamed = file.rename(tmp_path / "mine.parquet")
    alone = rlobj.replay(renamed)
    assert alone.steps == [2]
    assert alone.population + rlobj.replay(tmp_path / "tables").population == whole.population
    assert rlobj.replay(read_tables(tmp_path)).steps == [1]
    with pytest.raises(ConfigError, match="has no step 2; it has 1"):
        rlobj.replay(tmp_path, step=2)
    table = parquet.read_table(renamed)
    for broken in (None, {**table.schema.metadata, b"rlobj.updates": b"[1"}):
        metadata = {b"rlobj.schema_version": b"1"} if broken is None else broken
        parquet.write_table(table.replace_schema_metadata(metadata), renamed)
        with pytest.raises(ConfigError, match="is no full table, or it is damaged"):
            rlobj.replay(renamed)
