"""The pages of the documentation: their fenced blocks, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """Return language, text and line number of each fenced block."""
    text = page.read_text(encoding="utf-8")
    return [(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in BLOCK.finditer(text)]


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each `rlobj ...` line."""
    for language, text, _ in blocks(page):
        if language == "bash":
            for command in re.split(r"\n|&&", text.replace("\\\n", " ")):
                words = shlex.split(command, comments=True)
                if words and Path(words[0]).name == "rlobj":
                    yield words[1:]
