"""Curves out of characters show the values where they are."""

from __future__ import annotations

import pytest

from rlobj_cli.screen.charts import chart, resample, scale_label, sparkline, steps_axis


def test_resample_takes_means_of_neighbours_and_keeps_short_lists() -> None:
    assert resample([1, 3, 5, 7], 2) == [2, 6]
    assert resample([1, 3], 5) == [1, 3]
    assert resample([], 5) == []
    assert sum(resample(range(100), 7)) / 7 == pytest.approx(49.5, abs=1)


def test_sparkline_is_scaled_from_smallest_to_largest() -> None:
    assert sparkline([5, 1, 5, 9], 10) == "▅▁▅█"
    assert sparkline([2, 2, 2], 10) == "▁▁▁"
    assert len(sparkline(list(range(500)), 30)) == 30


def dots(rows: list[str]) -> set[tuple[int, int]]:
    """(column, row) of every braille dot."""
    bits = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
    found = set()
    for y, row in enumerate(rows):
        for x, character in enumerate(row):
            cell = ord(character) - 0x2800 if character not in " ●" else 0
            for dx, column in enumerate(bits):
                found |= {(2 * x + dx, 4 * y + dy) for dy, bit in enumerate(column) if cell & bit}
    return found


def test_chart_draws_a_rising_line_from_the_lower_left_to_the_upper_right() -> None:
    rows = [text for _, text in chart([(0, 0.0), (10, 1.0)], [], width=10, height=5)]
    drawn = dots(rows)
    assert (0, 19) in drawn
    assert (19, 0) in drawn
    assert {x for x, _ in drawn} == set(range(20))
    assert all(abs(19 - x - y) <= 1 for x, y in drawn)


def test_chart_labels_its_first_and_last_row_and_draws_marks() -> None:
    rows = chart([(1, 0.2), (2, 0.4)], [(0, 0.1), (2, 0.9)], width=8, height=3)
    assert [label for label, _ in rows] == [0.9, None, 0.1]
    assert rows[0][1][-1] == "●"
    assert rows[2][1][0] == "●"


@pytest.mark.parametrize("curve", [[(1, 0.5)], [(1, 0.5), (9, 0.5)]])
def test_chart_of_equal_values_is_one_line_in_the_middle_with_one_label(curve) -> None:
    rows = chart(curve, [], width=8, height=5)
    assert [label for label, _ in rows] == [None, None, 0.5, None, None]
    assert [bool(row.strip()) for _, row in rows] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("value", "span", "text"),
    [
        (0.5, 0.4, "0.500"),
        (0.99985, 0.0003, "0.999850"),
        (12345.6, 8000, "12,346"),
        (1.0, 0.0, "1.00"),
        (0.0, 0.0, "0.00"),
    ],
)
def test_scale_label_has_enough_digits_for_the_span(value, span, text) -> None:
    assert scale_label(value, span) == text
    assert len(text) <= 8  # the room in front of a chart


def test_steps_axis_shows_the_first_and_the_last_step() -> None:
    assert steps_axis(1, 12000, 20) == "step 1        12,000"
