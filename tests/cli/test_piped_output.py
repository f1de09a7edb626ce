"""Output into a pipe or a file: no blanks at line ends, and no noise when the reader leaves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlobj_cli.screen.streams import NO_READER

COMMANDS = ("presets list", "presets diff dapo stapo", "presets show stapo", "train --help")


def command(words: str) -> list[str]:
    return [sys.executable, "-m", "rlobj_cli", *words.split()]


@pytest.mark.parametrize("words", COMMANDS)
def test_piped_lines_do_not_end_with_blanks(words: str) -> None:
    done = subprocess.run(command(words), capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) > 5
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("words", [*COMMANDS, "--version"])
def test_a_closed_pipe_ends_the_command_without_a_message(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command(words), stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (NO_READER, b"")
