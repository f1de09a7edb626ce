"""Decide or refuse answers before parsing: equal text, integers, answers too large to evaluate.

An answer that is too long, too deeply nested or too large to evaluate is wrong, unless the gold
answer has the same property.
"""

from __future__ import annotations

import math
import re

MAX_LENGTH = 500
"""Limit on the characters of an answer, or four times the gold answer's if that is more."""
MAX_DEPTH = 12
"""Limit on nested brackets of any kind; math-verify takes seconds at this depth."""
MAX_EXPONENT = 100_000
"""Largest literal exponent, or value of the upper part of a tower a^b^c."""
MAX_FACTORIAL = 5_000
"""Largest literal number under a factorial or on top of a binomial."""

_LONG = re.compile(r"\\(?:i{0,3}int|oint|lim|sum|prod)(?![a-z])|[∫∑∏]")
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")
_SEPARATOR = re.compile(r",\\!|\{,\}|\\,|\\!")  # thousands separators of LaTeX
_OPEN = r"[\s{(]*"
_TOWER = re.compile(rf"\^{_OPEN}(?=([0-9]+){_OPEN}\^{_OPEN}([0-9]+))")
_EXPONENT = re.compile(rf"\^{_OPEN}[+-]?\s*([0-9]+)")
_FACTORIAL = re.compile(r"([0-9]+)[\s})]*!")
_REPEATED_FACTORIAL = re.compile(r"!(?:[\s})]|\\right)*!")
_BINOMIAL = re.compile(r"\\[dt]?binom[\s{]*([0-9]+)")


def decide(answer: str, gold: str) -> tuple[bool, str] | None:
    """Compare `answer` with `gold` as text and as integers.

    Returns:
        `(correct, reason)`, or None if the answers must be parsed.

    Example:
        >>> decide("1,024", "1024")
        (True, 'integers')
        >>> decide("9^{9^{9^{9}}}", "5")
        (False, 'too large: exponent above 100000')
        >>> decide("2^{10}", "1024") is None
        True
    """
    if answer == gold:
        return True, "same text"
    integer, gold_integer = _integer(answer), _integer(gold)
    if integer is not None and gold_integer is not None:
        return integer == gold_integer, "integers"
    if len(answer) > max(MAX_LENGTH, 4 * len(gold)):
        return False, f"too large: longer than {MAX_LENGTH} characters"
    reason = None if integer is not None else refusal(answer)
    return None if reason is None or refusal(gold) else (False, f"too large: {reason}")


def refusal(text: str) -> str | None:
    """Return why an answer is too large to evaluate, or None if it is not."""
    depth = _depth(text)
    if depth is None:
        return "unbalanced braces"
    if depth > MAX_DEPTH:
        return f"brackets deeper than {MAX_DEPTH}"
    if "^" in text:
        towers = (_exceeds_power(a, b) for a, b in _TOWER.findall(text))
        if any(towers) or _exceeds(_EXPONENT, text, MAX_EXPONENT):
            return f"exponent above {MAX_EXPONENT}"
    if _exceeds(_FACTORIAL, text, MAX_FACTORIAL) or _exceeds(_BINOMIAL, text, MAX_FACTORIAL):
        return f"factorial above {MAX_FACTORIAL}"
    if _REPEATED_FACTORIAL.search(text):
        return "factorial of a factorial"
    return None


def may_take_long(text: str) -> bool:
    """Return whether an answer needs a computer algebra system, which may take very long."""
    return _LONG.search(text) is not None


def _integer(text: str) -> tuple[bool, str] | None:
    """Sign and digits of an integer, as text so that the number of digits has no limit."""
    if not text.isdecimal():
        text = _SEPARATOR.sub(",", text)
    if not _INTEGER.fullmatch(text):
        return None
    digits = text.lstrip("+-").replace(",", "").lstrip("0")
    return text.startswith("-") and digits != "", digits


def _depth(text: str) -> int | None:
    """The largest number of brackets open at once, or None if braces do not match."""
    depth = deepest = braces = 0
    escaped = False
    for character in text:
        if character in "{}" and not escaped:
            braces += 1 if character == "{" else -1
            if braces < 0:
                return None
        if character in "{[(":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}])":
            depth -= 1
        escaped = character == "\\" and not escaped
    return None if braces else deepest


def _exceeds(pattern: re.Pattern[str], text: str, limit: int) -> bool:
    return any(
        len(digits) > len(str(limit)) or int(digits) > limit for digits in pattern.findall(text)
    )


def _exceeds_power(base: str, exponent: str) -> bool:
    """Return whether base^exponent is above MAX_EXPONENT, without computing it."""
    below, above = int(base[:20]), int(exponent[:20])
    return below > 1 and above > math.log(MAX_EXPONENT) / math.log(below)
