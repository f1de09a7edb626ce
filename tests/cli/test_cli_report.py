"""`rlobj report`: the page, its figures, and the times on the screen."""

from __future__ import annotations

from pathlib import Path

import typer
from report_runs import evaluation, write_run
from typer.testing import CliRunner

from rlobj_cli.report import report


def invoke(*words: str):
    app = typer.Typer()
    app.command()(report)
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, list(words))


def test_numbers_times_and_the_path_of_the_page_are_printed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run & more")
    result = invoke(str(run))
    assert result.exit_code == 0
    rows = [" ".join(text.split()) for text in result.output.splitlines()]
    assert "sampling 2.000 s (50.0%)" in rows
    assert "step 4.000 s (100.0%)" in rows
    assert any(row.startswith("steps ") for row in rows)  # the numbers of the run come first
    assert rows[-1].startswith(f"{run / 'report.html'} ")
    assert rows[-1].endswith("MB, opens in a browser")
    assert (run / "report.html").is_file()


def test_several_runs_have_a_column_each_and_options_say_where_files_go(tmp_path: Path) -> None:
    times = {"time/sampling": 2.0, "time/step": 4.0}
    runs = [write_run(tmp_path / "a", [{"step": 1, **times}, evaluation(1, 0.5)])]
    runs.append(write_run(tmp_path / "b", [evaluation(0, 0.5)]))
    words = ["--out", str(tmp_path / "page.html")]
    output = invoke(*map(str, runs), *words).output
    rows = [text.split() for text in output.splitlines()]
    assert ["seconds", "a", "step", "a", "b"] in rows
    assert ["sampling", "2.000", "s", "(50.0%)", "–"] in rows
    assert "b: no step is finished yet" in output
    assert (tmp_path / "page.html").is_file()
    assert not (tmp_path / "report.html").exists()
