"""`rlobj inspect`: what it prints, as text and as JSON."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path

import pytest
from record_rows import dropped, write_records
from rich.cells import cell_len
from rich.console import Console
from screens import printed

from rlobj.insight import inspect
from rlobj_cli.inspect import in_context, show

HOSTILE = "\x1b[2J[red]\u202e\r\n\x00[/red]" + "x" * 10_000


output = functools.partial(printed, "inspect")


def scratchpad(run: Path) -> Path:
    """A record of three wrong digits, of 103 tokens."""
    wrong = {"spurious": True, "advantage": 0.8, "entropy": 0.1}
    write_records(
        run,
        [
            dropped("2", step=60, before="2+6=12;12+4=16;", after="6+9=25#25", **wrong),
            dropped("4", step=58, before="6+9=15;1", after="+3=18;18+8=26#26", **wrong),
            dropped("2", step=7, before="1+1=", after="#2", **wrong),
        ],
        {60: 103, 58: 0, 7: 0},
    )
    return run


@pytest.mark.parametrize("columns", [80, 120])
def test_tokens_stand_in_their_context_below_each_other(tmp_path: Path, columns: int) -> None:
    text = output(str(scratchpad(tmp_path / "run")), columns=columns)
    assert max(map(len, text.splitlines()[3:])) <= columns
    assert "touched tokens: 3 (2.9%) of 103 tokens" in text
    assert "prob < 0.002" in text
    places = {line.index("[") for line in text.splitlines() if "step " in line and "[" in line}
    assert len(places) == 1
    context = "2+6=12;12+4=16;[2]6+9=25#25" if columns == 120 else "=16;[2]6+9=25#25"
    assert context in text
    group = next(line.split() for line in text.splitlines() if "[2] dropped" in line)
    assert group == ["[2]", "dropped", "2", "0.0010", "0.100", "0.80", "0.500"]


def test_the_age_of_the_weights_is_shown_where_tokens_are_stale(tmp_path: Path) -> None:
    write_records(tmp_path, [dropped("2", staleness=3), dropped("2", staleness=0, position=1)])
    text = output(str(tmp_path), columns=100)
    assert "staleness" in text
    group = next(line.split() for line in text.splitlines() if "[2] dropped" in line)
    assert group[-1] == "1.5"
    assert "staleness" not in output(str(scratchpad(tmp_path / "fresh")), columns=100)


def test_only_the_largest_groups_are_shown(tmp_path: Path) -> None:
    file = io.StringIO()
    show(Console(file=file, width=80), inspect(scratchpad(tmp_path), examples=1), 1)
    assert "1 more token texts: --json" in file.getvalue()
    assert file.getvalue().count(" step ") == 1


def test_the_head_of_the_counts_says_when_they_are_those_of_the_record(tmp_path: Path) -> None:
    write_records(tmp_path, [dropped()], {1: 100}, more=9)
    text = output(str(tmp_path))
    assert "touched tokens: 10 (10%) of 100 tokens; 1 are recorded" in text
    assert "recorded  " in text
    assert " tokens  " not in text
    write_records(tmp_path / "untouched", [{"spurious": True}])
    text = output(str(tmp_path / "untouched"))
    assert "touched tokens: 0 of 1 tokens" in text
    assert "None. --where RULE" in text


def test_json_is_the_whole_result(tmp_path: Path) -> None:
    found = json.loads(output(str(scratchpad(tmp_path)), "--json", "--text", "2"))
    assert [row["text"] for row in found["groups"]] == ["2"]
    assert found["question"] == "touched tokens '2'"


@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_text_is_shown_and_never_interpreted(tmp_path: Path, terminal: bool) -> None:
    hostile = {"before": HOSTILE, "after": HOSTILE, "clause": f"prob < {HOSTILE}"}
    hostile["effect"] = HOSTILE
    write_records(tmp_path, [dropped(HOSTILE, **hostile)])
    file = io.StringIO()
    screen = Console(file=file, width=80, force_terminal=terminal, color_system=None)
    show(screen, inspect(tmp_path), 10)
    text = file.getvalue()
    assert not {each for each in text if ord(each) < 32} - {"\n"}
    assert "\u202e" not in text
    assert "␛[2J[red]‹202e›" in text
    assert max(map(cell_len, text.splitlines()[2:])) <= 80
    assert len(text.splitlines()) < 40


@pytest.mark.parametrize("width", [1, 20, 60])
def test_a_context_fits_its_width_also_with_wide_characters(width: int) -> None:
    rows = [
        {"before": "日本" * 30, "text": "語" * 9, "after": "😀" * 30, "effect": "dropped"},
        {"before": "", "text": "", "after": "", "effect": "reweighted"},
        {"before": "a" * 99, "text": "\t", "after": "b\n" * 99, "effect": "dropped"},
    ]
    lines = in_context(rows, width)
    assert max(cell_len(line.plain) for line in lines) <= max(width, 3)


def test_html_writes_a_page_and_says_where_it_is_and_its_size(tmp_path: Path) -> None:
    run = scratchpad(tmp_path / "run")
    line = output(str(run), "--html", columns=200).strip()
    assert line.startswith(f"{run / 'inspect.html'}  ")
    assert line.endswith("MB, opens in a browser")
    assert b"Content-Security-Policy" in (run / "inspect.html").read_bytes()
    output(str(run), "--html", "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").is_file()
