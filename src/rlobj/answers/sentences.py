"""The sentences of a response.

A sentence ends at a full stop, `!` or `?` before a blank, at a blank line, and at the end of a line
or of displayed mathematics. It does not end there if it goes on with a small letter, with displayed
mathematics, or with "or".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARKUP = re.compile(
    r"\\(?:text\w*|mathrm|mathbf|mbox)\s*(?=\{)|\\(?:left|right)(?![a-z])"
    r"|\\(?:begin|end)\{[a-z*]{1,20}\}|\\(?:[,;:! ()\[\]\\]|q?quad\b)|[$*`~#>{}&]"
    r"|(?<![A-Za-z0-9\\}])_|_(?![A-Za-z0-9{\\])"
)
_CLOSERS = r"(?:[\"'”’)*_$}`]|\\[\])])*"
_END = re.compile(
    rf"(?:(?P<stop>(?<![.\s])\.(?!\.))|\?+|(?<![0-9)\]\s])(?<!\b[A-Za-z])!){_CLOSERS}(?=\s|\Z|<)"
    r"|[。！？]|(?:\\\]|\$\$)[ \t]*(?=[A-Z][a-z]+[ ,])|(?P<line>\n\s*)"
)
_ABBREVIATED = re.compile(
    r"(?:\b(?:i\.e|e\.g|cf|vs|resp|approx|ca|eq|fig|thm)|(?:\A|\n|\.)\s*[0-9]+)\Z", re.IGNORECASE
)
_GOES_ON = re.compile(r"[a-z](?![).])|[,;:)]|\$\$|\\\[|\\begin\b")
_OR = re.compile(r"[\s$*(\[]*or\b", re.IGNORECASE)


def plain(text: str) -> str:
    r"""Remove markup and math delimiters.

    Example:
        >>> plain(r"**So** $x = \text{ five}$").split()
        ['So', 'x', '=', 'five']
    """
    return _MARKUP.sub(" ", text)


def sentence_end(text: str, start: int = 0, *, joined: bool = False) -> re.Match[str] | None:
    """Return the first end of a sentence from `start`, or None.

    Args:
        text: prose.
        start: where to begin.
        joined: the text is only blanks and punctuation, so the end of a line does not end it.
    """
    for end in _END.finditer(text, start):
        if end["line"]:
            goes_on = end[0].count("\n") < 2 if joined else _GOES_ON.match(text, end.end())
        else:
            goes_on = end["stop"] and _ABBREVIATED.search(
                text, max(0, end.start() - 12), end.start()
            )
        if not goes_on and not _OR.match(text, end.end()):
            return end
    return None


def split_sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence and the mark at its end."""
    start = 0
    while end := sentence_end(text, start):
        yield text[start : end.start()], end[0]
        start = end.end()
    yield text[start:], ""
