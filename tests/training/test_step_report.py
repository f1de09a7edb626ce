"""`rlobj report`: the phases, the shares and the courses of a run, on screen and as a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from tiny import tiny_config
from typer.testing import CliRunner

from rlobj.base.errors import ConfigError
from rlobj.training import RunDirectory
from rlobj_cli.report import phases_of, report

SECONDS = {"sampling": 2.0, "forward": 1.0, "backward": 0.75, "other": 0.25, "grading": 0.0}


def line(step: int) -> dict:
    return {
        "step": step,
        **{f"time/{name}": seconds for name, seconds in SECONDS.items()},
        "time/step": 4.0,
        "time/grading_hidden": 0.5,
        "tokens/sampled": 800.0,
        "tokens/per_second": 200.0,
        "tokens/useful_share": 0.975,
        "tokens/skipped_share": 0.25,
        "tokens/skipped_logits_share": 0.4375,
        "tokens/rank_balance": 1.004,
        "reward/mean": step / 10,
        "policy/entropy": 1.0,
    }


@pytest.fixture
def run(tmp_path) -> Path:
    directory = RunDirectory(tmp_path / "run & more")
    directory.create(tiny_config(tmp_path, "stapo"))
    directory.append({"step": 0, "eval/accuracy": 0.25})
    for step in range(1, 6):
        directory.append(line(step))
    return directory.path


def invoke(*words: str):
    app = typer.Typer()
    app.command()(report)
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, list(words))


def test_the_table_shows_each_phase_with_its_share(run):
    result = invoke(str(run))
    assert result.exit_code == 0
    rows = [text.split() for text in result.output.splitlines()]
    assert ["sampling", "2.000", "50.0%", "400", "█" * 15] in rows
    assert ["other", "0.250", "6.2%", "3,200", "█" * 2] in rows
    assert ["step", "4.000", "100.0%", "200"] in rows
    assert ["grading,", "beside", "sampling", "0.500", "12.5%", "1,600"] in rows
    names = [row[0] for row in rows if len(row) > 3 and row[2].endswith("%")]
    assert names == ["sampling", "forward", "backward", "other", "step"]


def test_the_shares_and_courses_are_shown(run):
    output = invoke(str(run), "--no-page").output
    rows = filter(None, (line.split() for line in output.splitlines()))
    facts = {" ".join(words[:-1]): words[-1] for words in rows}
    assert facts["useful tokens of forward passes"] == "0.975"
    assert facts["most loaded process over the mean"] == "1.004"
    assert facts["tokens left out of updates"] == "0.250"
    assert facts["response tokens without logits in updates"] == "0.438"
    assert facts["tokens/s without evaluating and writing"] == "200"
    assert "0.500 ┤" in output  # the reward's highest
    assert "entropy" not in output  # it did not move
    assert not (run / "report.html").exists()


def test_the_page_stands_alone(run):
    invoke(str(run))
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page
    charts = [ElementTree.fromstring(part + "</svg>") for part in _charts(page)]
    assert len(charts) == 3  # reward, entropy, phases
    assert len(str(charts[0].findall("polyline")[0].get("points")).split()) == 5
    assert [p.findtext("title") for p in charts[-1].findall("polygon")] == [
        "sampling",
        "forward",
        "backward",
        "other",
    ]
    heights = {round(float(pair.split(",")[1])) for pair in _last(charts[-1]).split()[:5]}
    assert heights == {4}  # the shares add up to the whole


def test_the_page_has_every_number_of_the_screen(run):
    output = invoke(str(run)).output
    page = (run / "report.html").read_text(encoding="utf-8")
    tables = [
        [["".join(cell.itertext()) for cell in row] for row in ElementTree.fromstring(part)]
        for part in re.findall("<table>.*?</table>", page)
    ]
    assert tables[0][0] == ["phase", "s a step", "share", "tokens/s"]
    assert ["sampling", "2.000", "50.0%", "400"] in tables[0]
    assert [row[0] for row in tables[0][-2:]] == ["step", "grading, beside sampling"]
    assert tables[1][-1] == ["tokens/s without evaluating and writing", "200"]
    assert len(tables[1]) == 5
    screen = [" ".join(text.split()) for text in output.splitlines()]
    for row in [*tables[0], *tables[1]]:
        assert any(line.startswith(" ".join(row)) for line in screen), row


def _charts(page: str) -> list[str]:
    return ["<svg" + part.split("</svg>")[0] for part in page.split("<svg")[1:]]


def _last(chart: ElementTree.Element) -> str:
    return str(chart.findall("polygon")[-1].get("points"))


def test_a_single_step_has_a_page_too(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.create(tiny_config(tmp_path, "stapo"))
    directory.append(line(1))
    assert invoke(str(directory.path)).exit_code == 0
    assert "sampling" in (directory.path / "report.html").read_text(encoding="utf-8")


def test_what_is_no_run_or_has_no_step_is_said(tmp_path):
    assert isinstance(invoke(str(tmp_path)).exception, ConfigError)
    directory = RunDirectory(tmp_path / "run")
    directory.create(tiny_config(tmp_path, "stapo"))
    error = invoke(str(directory.path)).exception
    assert isinstance(error, ConfigError)
    assert "no finished step" in str(error)


def test_phases_come_largest_first():
    assert phases_of([line(1), line(2)]) == [
        ("sampling", [2.0, 2.0]),
        ("forward", [1.0, 1.0]),
        ("backward", [0.75, 0.75]),
        ("other", [0.25, 0.25]),
    ]
    assert phases_of([json.loads('{"time/step": 1}')]) == []
