"""`rlobj bench`: the screen, the folder, what fails, what is interrupted, what is gone on with."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import shlex
import sys
import types

import pytest
from rich.console import Console
from typer.testing import CliRunner

from rlobj import benchmarking
from rlobj.base.errors import RunError
from rlobj.benchmarking import Column, Table, figures, folder, machine, processes
from rlobj.benchmarking.processes import ask, kept_answers
from rlobj.benchmarking.tables import Finding, from_json, markdown, printed, to_json
from rlobj_cli.app import app
from rlobj_cli.bench import bench
from rlobj_cli.bench_screen import Watch, show_table

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})

SAVE = figures.save
TABLE = Table(
    name="first",
    title="A title",
    reading="How to read it.",
    columns=(
        Column("size", "size"),
        Column("method", "method"),
        Column("seconds", "CPU s", "seconds"),
        Column("ratio", "over ours", "ratio"),
        Column("memory", "MiB", "mib"),
    ),
    rows=(
        {"size": "small", "method": "rlobj", "seconds": 0.1234, "ratio": 1.0, "memory": 1234.5},
        {"size": "small", "method": "other", "seconds": 12.34, "ratio": 100.0, "memory": None},
        {"size": "large", "method": "rlobj", "seconds": 123.4, "ratio": 1.0, "memory": 2.0},
        {"size": "large", "method": "another", "skipped": "not installed"},
    ),
    findings=(
        Finding("0.50x of it (aim: at most 0.80x).", reached=True),
        Finding("1.50x (aim: 1x); what is reached elsewhere is another matter.", reached=False),
        Finding("3 reached for it."),
    ),
    settings=(("rounds", 1),),
)


def draw(figure, table):
    figure.subplots().plot(range(len(table.rows)))


def benchmark(monkeypatch, name, measure):
    """Put a benchmark of this name in place."""
    module = types.ModuleType(f"rlobj.benchmarking.{name}")
    module.measure, module.draw = measure, draw
    monkeypatch.setitem(sys.modules, module.__name__, module)
    if name not in benchmarking.BENCHMARKS:
        monkeypatch.setattr(benchmarking, "BENCHMARKS", (*benchmarking.BENCHMARKS, name))


@pytest.fixture
def two(monkeypatch, tmp_path):
    """Two benchmarks that ask nothing, `first` and `second`, in a folder of their own, undrawn."""
    monkeypatch.setattr(figures, "save", lambda draw, table, file: file.write_text("a picture"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmarking, "BENCHMARKS", ())
    for name in ("first", "second"):

        def measure(*, quick, rounds, progress, name=name):
            progress("something", 0, 1)
            settings = (("rounds", rounds), ("quick", str(quick)))
            return Table(name, f"About {name}", "Read.", TABLE.columns, TABLE.rows, (), settings)

        benchmark(monkeypatch, name, measure)
    return tmp_path


@pytest.mark.parametrize(
    ("cell", "kind", "text"),
    [
        (0.01234, "seconds", "0.012"),
        (0.00123, "seconds", "0.0012"),
        (1.234, "seconds", "1.23"),
        (1234.5, "seconds", "1,234"),
        (0.004, "ratio", "0.004x"),
        (0.354, "ratio", "0.35x"),
        (12.34, "ratio", "12.3x"),
        (0.9731, "share", "97.3%"),
        (1_000_000, "count", "1,000,000"),
        (0.4, "mib", "0"),
        (float("nan"), "mib", "–"),
        ("word", "ratio", "word"),
    ],
)
def test_a_cell_is_printed_by_its_kind(cell, kind, text):
    assert printed(cell, kind) == text


def test_a_table_comes_back_from_json_as_it_was():
    written = json.loads(json.dumps(to_json(TABLE)))
    assert from_json(written) == TABLE
    old = {**written, "findings": ["A sentence, as older files have it."]}
    assert from_json(old).findings == (Finding("A sentence, as older files have it."),)


def test_markdown_has_ours_in_bold_heads_once_and_reasons():
    lines = markdown(TABLE).splitlines()
    assert "| **small** | **rlobj** | **0.123** | **1.00x** | **1,234** |" in lines
    assert "|  | other | 12.3 | 100x | – |" in lines
    assert "|  | another | not installed |  |  |" in lines
    assert "- ✓ 0.50x of it (aim: at most 0.80x)." in lines
    assert "- 3 reached for it." in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


@pytest.mark.parametrize("width", [80, 100])
def test_the_screen_shows_blocks_findings_and_reasons(width):
    console = Console(width=width, record=True, force_terminal=True, file=io.StringIO())
    show_table(console, TABLE)
    text = console.export_text(clear=False)
    assert max(map(len, text.splitlines())) <= width
    small, large = text.index("small\n"), text.index("large\n")
    assert small < text.index("12.3  ") < large < text.index("another  not installed")
    assert "✓ 0.50x" in text
    assert "✗ 1.50x" in text
    assert "· 3 reached" in text
    styled = console.export_text(styles=True)
    assert "\x1b[1;32mrlobj" in styled
    assert "\x1b[2manother" in styled


def test_findings_wrap_behind_their_sign_without_trailing_blanks():
    console = Console(width=24, record=True, file=io.StringIO())
    findings = (Finding("These are words of a sentence that is long.", reached=True),)
    reading = "How to read it takes more words."
    show_table(console, Table("t", "T", reading, TABLE.columns, TABLE.rows[:1], findings))
    lines = console.export_text().splitlines()
    assert lines[1:3] == ["How to read it takes", "more words."]
    place = next(place for place, line in enumerate(lines) if line.startswith("✓"))
    assert lines[place:] == ["✓ These are words of a", "  sentence that is long."]


def test_a_table_whose_blocks_have_one_row_is_plain():
    console = Console(width=80, record=True, file=io.StringIO())
    single = Table("t", "T", "R", TABLE.columns, (TABLE.rows[0], TABLE.rows[2]))
    show_table(console, single)
    assert "small  rlobj   0.123" in console.export_text()


def test_columns_without_room_come_below_under_the_same_names():
    console = Console(width=40, record=True, file=io.StringIO())
    show_table(console, Table("t", "T", "R", TABLE.columns, (TABLE.rows[0], TABLE.rows[1])))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 40
    assert [line.split() for line in lines if line.startswith("rlobj")] == [
        ["rlobj", "0.123", "1.00x", "1,234"]
    ]
    narrow = Console(width=18, record=True, file=io.StringIO())
    show_table(narrow, Table("t", "T", "R", TABLE.columns, (TABLE.rows[0], TABLE.rows[1])))
    lines = narrow.export_text().splitlines()
    assert [line.split() for line in lines if line.startswith("rlobj")] == [
        ["rlobj", "0.123"],
        ["rlobj", "1.00x"],
        ["rlobj", "1,234"],
    ]


def test_without_a_terminal_progress_is_a_line_each_tenth():
    console = Console(width=80, record=True, force_terminal=False, file=io.StringIO())
    with Watch(console, "heads") as watch:
        for done in range(101):
            watch(f"measurement {done}", done, 100)
    lines = console.export_text().splitlines()
    assert len(lines) == 10
    assert lines[1] == "heads 10/100: measurement 10"


def test_all_benchmarks_are_measured_shown_and_written(two):
    result = runner.invoke(app, ["bench"])
    assert result.exit_code == 0, result.output
    assert "About first" in result.output
    assert "measured with: rounds 1, quick True" in result.output
    (place,) = (two / "bench").iterdir()
    found = json.loads((place / "bench.json").read_text())
    assert [table["name"] for table in found["tables"]] == ["first", "second"]
    assert found["versions"]["rlobj"] in result.output.replace("\n", " ")
    assert {"processor", "cores", "memory"} <= set(found["machine"])
    page = (place / "bench.md").read_text()
    assert page.startswith("# rlobj bench\n")
    assert page.count("Command: `rlobj bench --rounds 1`") == 2
    assert "## About second" in page
    assert (place / "second.png").exists()
    assert "![About second](second.png)" in page


def test_the_full_one_takes_three_rounds_and_named_ones_are_alone(two):
    result = runner.invoke(app, ["bench", "second", "--full", "-o", "mine"])
    assert result.exit_code == 0
    found = json.loads((two / "mine" / "bench.json").read_text())
    (table,) = found["tables"]
    assert table["settings"] == [["rounds", 3], ["quick", "False"]]
    assert found["commands"] == {"second": "rlobj bench second --full --rounds 3"}


def test_an_unknown_name_is_told_with_the_nearest(two):
    result = runner.invoke(app, ["bench", "secnod"])
    assert result.exit_code == 2
    assert "Did you mean 'second'?" in result.output
    assert not (two / "bench").exists()


def test_a_benchmark_that_fails_is_told_and_the_others_go_on(two, monkeypatch):
    def measure(**_):
        raise RunError("of its own accord")

    benchmark(monkeypatch, "first", measure)
    result = runner.invoke(app, ["bench", "-o", "mine"])
    assert result.exit_code == 1
    assert "first failed: of its own accord" in result.output
    assert "About second" in result.output
    assert "rlobj bench --rounds 1 --out mine" in result.output
    assert json.loads((two / "mine" / "bench.json").read_text())["failed"] == {
        "first": "of its own accord"
    }
    assert "of its own accord" in (two / "mine" / "bench.md").read_text()


def test_without_matplotlib_there_is_a_sentence_and_everything_else(two, monkeypatch):
    monkeypatch.setattr(figures, "save", SAVE)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = runner.invoke(app, ["bench", "first", "-o", "mine"])
    assert result.exit_code == 0
    assert "pip install 'rlobj[bench]'" in result.output
    assert sorted(file.name for file in (two / "mine").iterdir()) == ["bench.json", "bench.md"]


def test_a_folder_collects_tables_and_refuses_another_machine(two, monkeypatch):
    runner.invoke(app, ["bench", "first", "-o", "mine"])
    runner.invoke(app, ["bench", "second", "-o", "mine"])
    page = (two / "mine" / "bench.md").read_text()
    assert page.index("About first") < page.index("About second")
    monkeypatch.setattr(folder, "versions", lambda: {"rlobj": "0", "torch": "1.0"})
    result = runner.invoke(app, ["bench", "second", "-o", "mine"])
    assert result.exit_code == 2
    assert "torch: " in result.output
    assert "there, 1.0 here" in result.output.replace("\n", " ")


def test_a_folder_belongs_to_our_sources_and_not_to_a_commit(two, monkeypatch):
    here = {"rlobj": "1 (commit a)", machine.SOURCES: "1a2b", "torch": "1.0"}
    monkeypatch.setattr(folder, "versions", lambda: here)
    runner.invoke(app, ["bench", "first", "-o", "mine"])
    here["rlobj"] = "1 (commit b, changed)"
    assert runner.invoke(app, ["bench", "second", "-o", "mine"]).exit_code == 0
    here[machine.SOURCES] = "3c4d"
    result = runner.invoke(app, ["bench", "second", "-o", "mine"])
    assert result.exit_code == 2
    assert "rlobj's sources: 1a2b there, 3c4d here" in result.output.replace("\n", " ")


def test_sources_are_told_apart_by_what_is_in_their_modules(tmp_path):
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "module.py"
    file.write_text("one = 1")
    first = machine._sources(tmp_path)
    (tmp_path / "notes.txt").write_text("no module")
    assert machine._sources(tmp_path) == first
    file.write_text("one = 2")
    assert machine._sources(tmp_path) != first


def test_a_folder_keeps_what_failed_and_the_command_of_each_table(two, monkeypatch):
    def measure(**_):
        raise RunError("of its own accord")

    benchmark(monkeypatch, "first", measure)
    runner.invoke(app, ["bench", "first", "-o", "mine"])
    runner.invoke(app, ["bench", "second", "-r", "2", "-o", "mine"])
    found = json.loads((two / "mine" / "bench.json").read_text())
    assert found["failed"] == {"first": "of its own accord"}
    assert found["commands"] == {
        "first": "rlobj bench first --rounds 1",
        "second": "rlobj bench second --rounds 2",
    }


@pytest.mark.parametrize("text", ["{}", "[]", "not JSON", '{"machine": 3, "versions": {}}'])
def test_a_bench_json_of_something_else_is_wrong_input(two, text):
    (two / "mine").mkdir()
    (two / "mine" / "bench.json").write_text(text)
    result = runner.invoke(app, ["bench", "-o", "mine"])
    assert result.exit_code == 2, result.output
    assert "is not one that rlobj bench wrote" in result.output.replace("\n", " ")
    assert (two / "mine" / "bench.json").read_text() == text


@pytest.mark.parametrize("place", ["/proc/nothing", "file/in/it"])
def test_a_folder_that_cannot_be_written_is_wrong_input(two, place):
    (two / "file").write_text("mine")
    result = runner.invoke(app, ["bench", "-o", place])
    assert result.exit_code == 2, result.output
    assert f"--out {place} cannot be written (" in result.output.replace("\n", " ")


def test_a_folder_of_something_else_is_left_alone(two):
    (two / "notes.txt").write_text("mine")
    result = runner.invoke(app, ["bench", "-o", str(two)])
    assert result.exit_code == 2
    assert [file.name for file in two.iterdir()] == ["notes.txt"]


def test_an_interrupted_one_goes_on_behind_its_last_answer(two, monkeypatch):
    asked = []

    def process(command, **_):
        question = json.loads(command[-1])
        if question["number"] == 3 and asked.count(3) == 0:
            asked.append(3)
            raise KeyboardInterrupt
        asked.append(question["number"])
        return types.SimpleNamespace(returncode=0, stdout=f"chatter\n{question['number'] * 10}\n")

    def measure(**_):
        cells = [ask("a.module", {"number": number}) for number in (1, 1, 2, 3)]
        rows = tuple({"size": str(place), "seconds": cell} for place, cell in enumerate(cells))
        return Table("first", "About first", "Read.", TABLE.columns[:1], rows)

    monkeypatch.setattr(processes.subprocess, "run", process)
    monkeypatch.setattr(folder, "versions", lambda: {"rlobj": "0", "torch": "1.0"})
    benchmark(monkeypatch, "first", measure)
    place = f"my [bold]results {'of a long name ' * 4}"
    result = runner.invoke(app, ["bench", "first", "-o", place])
    assert result.exit_code == 130
    again = next(line for line in result.output.splitlines() if "--out" in line)
    assert again.startswith("  rlobj bench first --rounds 1 --out ")
    assert shlex.split(again)[-1] == place
    result = runner.invoke(app, ["bench", "first", "-o", place])
    assert result.exit_code == 0, result.output
    assert asked == [1, 1, 2, 3, 3]
    (table,) = json.loads((two / place / "bench.json").read_text())["tables"]
    assert [row["seconds"] for row in table["rows"]] == [10, 10, 20, 30]


def test_half_a_line_of_answers_is_measured_again(tmp_path, monkeypatch):
    file = tmp_path / "answers.jsonl"
    answers = iter([1, 2])
    monkeypatch.setattr(
        processes.subprocess,
        "run",
        lambda *_, **__: types.SimpleNamespace(returncode=0, stdout=f"{next(answers)}\n"),
    )
    with kept_answers(file):
        assert ask("a.module", {}) == 1
    file.write_text(file.read_text()[:-3])
    with kept_answers(file):
        assert ask("a.module", {}) == 2
    with kept_answers(file):
        assert ask("a.module", {}) == 2
    with pytest.raises(StopIteration):
        ask("a.module", {})  # outside, nothing is remembered


@pytest.mark.slow
def test_a_process_that_fails_is_an_error_with_what_it_said():
    with pytest.raises(RunError, match=r'measuring \{"x": 1\} with rlobj.benchmarking.plan'):
        ask("rlobj.benchmarking.plan", {"x": 1})


@pytest.mark.parametrize("name", benchmarking.BENCHMARKS)
def test_every_benchmark_can_be_measured_and_drawn(name):
    module = importlib.import_module(f"rlobj.benchmarking.{name}")
    assert callable(module.measure)
    assert callable(module.draw)


def test_the_helps_lines_are_whole_in_60_columns():
    text = inspect.cleandoc(bench.__doc__ or "").partition("\n")[2]
    assert max(map(len, text.splitlines())) <= 58


def test_help_names_every_benchmark_and_fits_in_80_columns():
    result = runner.invoke(app, ["bench", "--help"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    for name in benchmarking.BENCHMARKS:
        assert any(line.strip().startswith(name) for line in lines)
    assert any(line.strip().startswith("rlobj bench") for line in lines)


def test_colours_are_eight_different_ones():
    assert len(set(figures.COLOURS)) == 8
