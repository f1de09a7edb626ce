"""Text of tokens, prompts and names for a terminal or a message: data that nothing interprets."""

import unicodedata

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that move the cursor, turn the direction of text, or have no glyph."""


def visible(text: str, most: int | None = None) -> str:
    r"""Text on one line in which every control character is a symbol.

    Args:
        text: any text.
        most: the largest number of characters; longer text ends with "…". None = all.

    Example:
        >>> visible("a\n\x1b[31mb\u202ec"), visible("abcdef", 4)
        ('a␊␛[31mb‹202e›c', 'abc…')
    """
    if most is not None and len(text) > most:
        text = text[: max(most - 1, 0)] + "…"
    shown = text.translate(_PICTURES)
    return "".join(
        f"‹{ord(char):x}›" if unicodedata.category(char) in _UNSAFE else char for char in shown
    )
