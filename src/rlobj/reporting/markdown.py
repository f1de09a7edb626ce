"""Tables of Markdown, whose texts mean nothing to it."""

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table; the first column is aligned left, the others right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    first, *rest = [[escaped(cell) for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (first, rule, *rest))


def escaped_lines(text: str) -> str:
    """Lines of text as lines of a paragraph."""
    return "<br>".join(map(escaped, text.split("\n")))


def escaped(text: str) -> str:
    """Text on one line without a meaning in Markdown or in a table."""
    for mark in ("\\", "|", "<", "`", "*", "_", "$"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
