"""Standard output and error as every command uses them."""

from __future__ import annotations

import io
import os
import re
import sys

NO_READER = 141
"""Exit code when the output has no reader any more, as shells report it for `cat FILE | head`."""


class PipedOutput(io.TextIOWrapper):
    """Text into a pipe or a file: no blanks at line ends, and a quiet end without a reader."""

    def write(self, text: str) -> int:
        """Write the text without the blanks that pad the cells of a table."""
        try:
            super().write(re.sub(r" +(?=\n)", "", text))
        except BrokenPipeError:
            self._end()
        return len(text)

    def flush(self) -> None:
        """Flush; ends the process if nobody reads any more."""
        try:
            super().flush()
        except BrokenPipeError:
            self._end()

    def _end(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for the flush at exit
        raise SystemExit(NO_READER)


def prepare_streams() -> None:
    """Show '?' for a character that the terminal cannot show, and tidy output that is piped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout = PipedOutput(sys.stdout.buffer, sys.stdout.encoding, "replace")
