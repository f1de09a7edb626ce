"""Output into a pipe: no noise when the reader leaves."""

from __future__ import annotations

import os
import tempfile

import pytest
from forked import Forked


@pytest.mark.parametrize("words", ["presets list", "presets show stapo", "train --help"])
def test_a_closed_pipe_ends_the_command_without_a_message(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output, tempfile.TemporaryFile() as errors:
        process = Forked(["-m", "rlobj_cli", *words.split()], output, errors)
        assert process.wait(300) == 1
        errors.seek(0)
        assert errors.read() == b""
