"""Progress bars of transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers.utils import logging


@contextlib.contextmanager
def no_bars() -> Iterator[None]:
    """Hide transformers' progress bars: local files load in no time."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
