"""`rlobj serve`: what it shows of the log of vLLM."""

from __future__ import annotations

from pathlib import Path

from rlobj_cli.serve import _last_line


def test_last_line_of_a_log_has_no_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert _last_line(log) == ""
    log.write_text("first\n\x1b[32mloading\x1b[0m 1/9\rloading 2/9\n\n")
    assert _last_line(log) == "loading 2/9"
