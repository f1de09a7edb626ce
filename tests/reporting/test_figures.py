"""Figures: one description for pages and for papers."""

from __future__ import annotations

import math
import re
from pathlib import Path

from rlobj.reporting import Figure, Line, Mark, Target, figure_data, save_figure
from rlobj.reporting.figures import COLORS, looks

HOSTILE = "_$\\frac{a}$ \x1b[31m </svg><script>alert(1)</script> \u202e" + "x" * 10_000


def figure(*lines: Line, **changes: object) -> Figure:
    return Figure("name", "Title", "nats", lines, **changes)  # type: ignore[arg-type]


def test_no_two_lines_of_a_figure_look_the_same() -> None:
    one = [Line(str(i), [1], [1.0]) for i in range(4)]
    several = [Line(str(i), [1], [1.0], run=i // 2) for i in range(4)]
    many = [Line(str(i), [1], [1.0], run=i) for i in range(30)]
    for lines in (one, several, many):
        assert len({*looks(lines)}) == len(lines)
    assert looks(many[2:3]) == looks(many)[2:3], "a run has its colour without the others, too"
    assert len({color for color, _ in looks(several)}) == 2


def test_steps_have_whole_ticks(tmp_path: Path) -> None:
    for title, whole in (("step", True), ("share", False)):
        save_figure(figure(Line("a", [1, 2, 3], [1.0, 2.0, 3.0]), x=title), tmp_path / "a.svg")
        texts = re.findall("<!-- (.*) -->", (tmp_path / "a.svg").read_text("utf-8"))
        ticks = texts[: texts.index(title)]
        assert (ticks == ["1", "2", "3"]) == whole, ticks


def test_page_data_round_numbers_and_mark_gaps() -> None:
    first = Line("a", [1, 2, 3], [0.123456, None, math.nan], low=[0, 0, 0], high=[1, 1, math.inf])
    second = Line("b", (1, 2, 3), [12345.6, -1e-9, 3], run=1)
    marks, targets = [Mark(2, "collapse", 1)], [Target(0.1, "target")]
    drawn = figure_data(figure(first, second, marks=marks, targets=targets))
    a, b = drawn["lines"]
    assert a["y"] == [0.1235, None, None]
    assert a["high"] == [1, 1, None]
    assert b["y"] == [12350, -1e-9, 3]
    assert "low" not in b
    assert drawn["marks"] == [{"x": 2, "text": "collapse", "run": 1, "color": COLORS[1]}]
    assert drawn["targets"] == [{"y": 0.1, "text": "target"}]


def test_a_figure_that_is_made_again_is_the_same_file(tmp_path: Path) -> None:
    line = Line("a", [1, 2, 3], [0.1, None, 0.3], low=[0, 0, None], high=[1, 1, 1])
    for path, start in ((tmp_path / "a.svg", b"<?xml"), (tmp_path / "a.png", b"\x89PNG")):
        contents = []
        for _ in range(2):
            save_figure(figure(line, targets=[Target(0.1, "t")], marks=[Mark(2, "m")]), path)
            contents.append(path.read_bytes())
        assert contents[0].startswith(start)
        assert contents[0] == contents[1]


def test_a_file_has_the_whole_caption_and_names_that_differ_at_their_ends(tmp_path: Path) -> None:
    names = [f"{'prob < 0.1 & ' * 12}entropy > {end}" for end in (1, 2)]
    lines = [Line(name, [1], [1.0]) for name in names]
    save_figure(figure(lines[0], caption=["drop prob < 0.5"]), tmp_path / "one.svg")
    save_figure(figure(*lines, caption=names), tmp_path / "two.svg")
    one, two = ((tmp_path / f"{name}.svg").read_text("utf-8") for name in ("one", "two"))
    assert "<!-- drop prob &lt; 0.5 -->" in one
    assert "drop prob" not in two
    for end in (1, 2):
        assert len(re.findall(f"<!-- .*entropy &gt; {end} -->", two, re.DOTALL)) == 1
    assert two.count("&amp; entropy &gt; ") + two.count("entropy &gt; ") >= 4


def test_hostile_names_and_empty_lines_are_drawn_as_text(tmp_path: Path) -> None:
    lines = [Line(HOSTILE, [0, 1], [0.0, -1.0]), Line("_", [], []), Line("中", [1], [None])]
    hostile = Figure("x", HOSTILE, HOSTILE, lines, [Mark(1, HOSTILE)], x=HOSTILE)
    save_figure(hostile, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text("utf-8")
    assert "<script" not in text
    assert "\x1b" not in text
