"""The program as a whole: help, version, exit codes, and what it imports to answer."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import typer
from screens import COMMANDS, printed
from typer.testing import CliRunner

from rlobj.base.errors import ConfigError, MissingExtra, RunError
from rlobj_cli.screen.console import GuardedGroup

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_fits_in_80_columns(command: tuple[str, ...]) -> None:
    lines = printed(*command, "--help").splitlines()
    assert any(line.strip().startswith(f"rlobj {' '.join(command)}") for line in lines)
    assert max(map(len, lines)) <= 80
    assert "<bool>" not in "\n".join(lines)  # a flag has no value


def test_flags_of_the_program_have_no_value_in_its_help() -> None:
    assert "--install-completion" in printed("--help")
    assert "<bool>" not in printed("--help")


def failing(error: BaseException) -> typer.Typer:
    """A program whose only work is to raise."""
    program = typer.Typer(cls=GuardedGroup)

    @program.command()
    def work() -> None:
        raise error

    @program.callback()
    def main() -> None: ...

    return program


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("the message, with [hub]"), 2),
        (MissingExtra("datasets", "hub", "the message, with [hub]"), 2),
        (RunError("the message, with [hub]"), 1),
        (KeyboardInterrupt(), 130),
        (KeyboardInterrupt(signal.SIGTERM), 143),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_an_error_gives_one_message_and_an_exit_code(error: BaseException, code: int) -> None:
    result = runner.invoke(failing(error), ["work"])
    assert result.exit_code == code
    assert "Traceback" not in result.output
    assert result.output.count("the message, with [hub]") == (0 if code > 128 else 1)


def test_rlobj_traceback_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLOBJ_TRACEBACK", "1")
    result = runner.invoke(failing(ConfigError("the message")), ["work"])
    assert isinstance(result.exception, ConfigError)


def test_unexpected_errors_are_not_caught() -> None:
    result = runner.invoke(failing(ZeroDivisionError("a bug")), ["work"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_thread_that_never_ends_does_not_hold_the_process() -> None:
    program = (
        "import threading, sys; from rlobj_cli import app\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "app.SECONDS_LEFT = 0.1; sys.argv = ['rlobj', '--version']; app.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 0
