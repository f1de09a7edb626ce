"""The benchmarks' processes, memory, ratios, tables and files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import harness
from benchmarks.harness import Table, ask, cpu_seconds, peak_above, ratio, write

TABLE = Table(
    "name",
    {"method": ("method", ""), "seconds": ("CPU s", ".3g"), "share": ("share", ".1%")},
    [
        {"method": "rlobj", "seconds": 0.12345, "share": 0.9731, "curve": [0.1, 0.2]},
        {"method": "other", "seconds": 2.0, "share": None},
    ],
    {"rounds": 1},
    labels=("method",),
    bars=("seconds",),
    reading="How to read it.",
)


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    ours, base = [3.0, 2.0, 16.0], [1.0, 2.0, 4.0]
    rounds = ([{"seconds": each} for each in some] for some in (ours, base))
    assert ratio(*rounds) == 3.0  # the ratio of medians is 1.5


def test_the_table_shows_each_number_in_its_format() -> None:
    lines = TABLE.markdown().splitlines()
    assert "| method | CPU s | share |" in lines
    assert "| rlobj | 0.123 | 97.3% |" in lines
    assert "| other | 2 | – |" in lines
    assert lines[-1].startswith("rounds 1; processor ")


@pytest.mark.parametrize("out", ["--out=a/b", "--out a/b"])
def test_the_files_hold_every_number_the_machine_and_the_command(
    tmp_path: Path, monkeypatch, out: str
) -> None:
    words = ["-m", "benchmarks.name", *out.split(), "--full"]
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    write(TABLE, tmp_path)
    assert (tmp_path / "name.md").read_text("utf-8") == TABLE.markdown()
    found = json.loads((tmp_path / "name.json").read_text("utf-8"))
    assert found["rows"] == TABLE.rows
    assert found["machine"]["torch"]
    assert found["command"] == "-m benchmarks.name --full"
    assert (tmp_path / "name.png").stat().st_size > 5000


def test_the_command_line_measures_quickly_unless_full_is_asked_for(tmp_path, monkeypatch, capsys):
    asked = []

    def measure(quick: bool, rounds: int) -> Table:
        asked.append((quick, rounds))
        return TABLE

    monkeypatch.setattr(sys, "argv", ["x"])
    harness.main(measure)
    monkeypatch.setattr(sys, "argv", ["x", "--full", "--rounds", "3", "--out", str(tmp_path)])
    harness.main(measure)
    assert asked == [(True, 1), (False, 3)]
    assert capsys.readouterr().out.count("| rlobj | 0.123 |") == 2
    assert (tmp_path / "name.json").exists()


def test_the_command_line_chooses_works_and_refuses_others(monkeypatch, capsys) -> None:
    asked = []

    def measure(quick: bool, rounds: int, works: list[str]) -> Table:
        asked.append([*works])
        return TABLE

    for words in ([], ["--works", "b"], ["--works", "c", "a"]):
        monkeypatch.setattr(sys, "argv", ["x", *words])
        harness.main(measure, works=("a", "b", "c"))
    assert asked == [["a", "b", "c"], ["b"], ["c", "a"]]
    monkeypatch.setattr(sys, "argv", ["x", "--works", "d"])
    with pytest.raises(SystemExit):
        harness.main(measure, works=("a", "b"))
    assert "invalid choice: 'd'" in capsys.readouterr().err


def test_peak_memory_is_that_of_the_work_alone() -> None:
    harness.return_freed_memory()
    try:
        assert 30 < peak_above(lambda: bytearray(32 << 20)) < 40
    finally:
        harness.keep_freed_memory()


def test_cpu_seconds_leave_out_waiting() -> None:
    import time

    assert cpu_seconds(lambda: time.sleep(0.2)) < 0.1
    assert cpu_seconds(lambda: sum(range(10**7))) > 0.05


@pytest.mark.slow
def test_a_failing_process_is_an_error_with_the_end_of_its_output() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)benchmarks.plan .*unexpected keyword argument"):
        ask("benchmarks.plan", {"unknown": 1})
