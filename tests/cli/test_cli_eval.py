"""`rlobj eval` reads its arguments."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from rlobj_cli.app import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


def printed(*words: str, code: int = 2) -> str:
    """What a command prints, on one line."""
    result = runner.invoke(app, ["eval", *words])
    assert result.exit_code == code
    return " ".join(result.output.split())


def test_error_names_the_flag_of_a_wrong_setting() -> None:
    assert "--set: training is for training" in printed(
        "some/model", "--on", "addition", "--set", "training.steps=3"
    )


def test_commands_with_a_name_in_a_group_with_a_default_command(tmp_path: Path) -> None:
    for words in (["eval", "--help"], ["eval"]):
        assert "--protocol" in runner.invoke(app, words).output
    assert "is not an evaluation" in printed("show", str(tmp_path))


def test_usage_of_eval_has_one_blank_between_name_and_options() -> None:
    for words in (["eval", "--help"], ["eval", "MODEL", "--nope"]):
        assert "Usage: rlobj eval [OPTIONS]" in runner.invoke(app, words).output
