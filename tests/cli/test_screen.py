"""What all commands share on screen."""

from __future__ import annotations

import time

from screens import console, text_of

from rlobj.reporting.terminal import importing, number, working


def test_working_shows_the_time() -> None:
    screen = console(terminal=True)
    with working(screen, "starting"):
        time.sleep(0.05)
    assert "starting, 0 s" in text_of(screen)


def test_importing_is_one_line_on_stderr_with_what_is_not_imported_yet(capsys) -> None:
    with importing("json", "no_such_package"):
        pass
    with importing("json"):
        pass
    assert capsys.readouterr() == ("", "importing no_such_package ...\n")


def test_small_speeds_are_ordinary_numbers() -> None:
    speeds = [number(speed, 0) for speed in (1234.6, 7.3, 0.87, 0.0)]
    assert speeds == ["1,235", "7", "0.87", "0"]
