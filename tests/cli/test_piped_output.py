"""Output into a pipe: no noise when the reader leaves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMMANDS = ("presets list", "presets diff dapo stapo", "presets show stapo", "train --help")


@pytest.mark.parametrize("words", [*COMMANDS, "--version"])
def test_a_closed_pipe_ends_the_command_without_a_message(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rlobj_cli", *words.split()]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
