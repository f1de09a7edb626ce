"""Numbers written in words, and decimals whose last digits repeat."""

from __future__ import annotations

import re
from fractions import Fraction

from rlobj.answers.vocabulary import table

_SMALL, _TENS, _FIRST = table(
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen; twenty thirty forty fifty sixty seventy eighty ninety;
    first second third fourth fifth sixth seventh eighth ninth"""
)
CARDINALS = {word: n for n, word in enumerate(_SMALL)} | {
    word: 10 * n for n, word in enumerate(_TENS, 2)
}
"""Number word below one hundred -> value."""
MULTIPLES = {"hundred": 100, "thousand": 1000, "dozen": 12, "score": 20, "gross": 144}
MULTIPLES |= {"lakh": 10**5, "crore": 10**7, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINALS = {word: n for n, word in enumerate(_FIRST, 1)} | {
    re.sub("ve$", "f", re.sub("y$", "ie", word)) + "th": n for word, n in CARDINALS.items() if n > 9
}
_PARTS = {"half": 2, "halve": 2, "quarter": 4, "hundredth": 100, "thousandth": 1000} | {
    word: value for word, value in _ORDINALS.items() if value > 2
}
_PLURALS = {f"{word}s": value for word, value in _PARTS.items()}
SCALES: dict[str, Fraction | int] = {**MULTIPLES} | {
    word: Fraction(1, below) for word, below in _PLURALS.items()
}
"""Word after a number -> factor: million, dozen, thirds."""
NUMBER_WORDS = frozenset(CARDINALS) | frozenset(MULTIPLES) | frozenset(_PARTS) | frozenset(_PLURALS)
"""Words that change the number before them."""

_WORD = re.compile(r"[a-z]+")
_GAP = re.compile(r"[\s~]+|-|\\ ")
_ORDINAL = re.compile(r"([0-9]+) ?\^? ?(?:st|nd|rd|th)")

_DIGITS = r"([0-9]*\.[0-9]*)"
_BAR = re.compile(_DIGITS + r"\s*\\(?:overline|overbar|bar)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_DOTS = re.compile(
    _DIGITS + r"\s*\\dot\s*\{?([0-9])\}?(?:\s*([0-9]*)\s*\\dot\s*\{?([0-9])\}?)?(?![0-9])"
)
_CONTINUED = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]+)\s*(?:\.\.+|\\[lc]?dots(?:\b|$))\s*")


def read_number_words(text: str) -> str:
    """Replace the number in words at the start of a text by digits.

    Example:
        >>> read_number_words("Thirty-three ways"), read_number_words("two-thirds")
        ('33 ways', '2/3')
        >>> read_number_words("two-digit primes"), read_number_words("One hundred and one")
        ('two-digit primes', '101')
    """
    lowered = text.lower()
    words, spans = _words(lowered)
    signed = words[:1] in (["negative"], ["minus"])
    value, count = _mixed(words[signed:])
    if value is None:
        return text
    end = spans[count + signed - 1]
    if text[end : end + 1] == "-":  # two-digit
        return text
    return f"{'-' if signed else ''}{value}{text[end:]}"


def read_ordinal(text: str) -> str | None:
    """Return "21th" for an ordinal such as "21st" or "twenty-first" in lower case; else None."""
    if digits := _ORDINAL.fullmatch(text):
        return f"{int(digits[1])}th"
    words, spans = _words(text)
    if not words or words[-1] not in _ORDINALS or spans[-1] != len(text):
        return None
    value, count = _cardinal(words[:-1])
    tens = len(words) == 1 or (value % 100 in range(20, 100, 10) and _ORDINALS[words[-1]] < 10)
    return f"{value + _ORDINALS[words[-1]]}th" if tens and count == len(words) - 1 else None


def read_repeating(text: str) -> str:
    r"""Write repeating decimals as 0.1(6); the digits before an ellipsis must show the period.

    Example:
        >>> [read_repeating(text) for text in (r"0.\overline{5}", r"0.1666\ldots", "3.14...")]
        ['0.(5)', '0.1(6)', '\\approx 3.14']
    """
    text = _BAR.sub(lambda run: f"{run[1]}({run[2] or run[3]})", text)
    text = _DOTS.sub(lambda run: f"{run[1]}({run[2]}{run[3] or ''}{run[4] or ''})", text)
    if (run := _CONTINUED.search(text)) is None:
        return text
    decimals = _period(run[2])
    if decimals is not None and not text[run.end() : run.end() + 1].isdecimal():
        return text[: run.start()] + f"{run[1]}.{decimals}" + text[run.end() :]
    alone = run.span() == (0, len(text))
    return rf"\approx {run[1]}.{run[2]}" if alone else text  # digits that were cut off


def _period(digits: str) -> str | None:
    """The decimals with their period in brackets: at least two periods and three digits."""
    found, covered = None, 2
    for length in range(1, len(digits) // 2 + 1):
        same = len(digits) - length
        while same and digits[same - 1] == digits[same - 1 + length]:
            same -= 1
        if len(digits) - same >= max(2 * length, covered + 1):
            found, covered = f"{digits[:same]}({digits[same : same + length]})", len(digits) - same
    return found


def _words(text: str) -> tuple[list[str], list[int]]:
    """The words at the start of a text, joined by blanks and hyphens, and their ends."""
    words, ends, position = [], [], 0
    while word := _WORD.match(text, position):
        words.append(word[0])
        ends.append(word.end())
        gap = _GAP.match(text, word.end())
        if gap is None:
            break
        position = gap.end()
    return words, ends


def _cardinal(words: list[str]) -> tuple[int, int]:
    """The whole number at the start, and how many words it has; no words if there is none."""
    total = group = count = 0
    scale = 10**15
    if len(words) > 1 and words[0] in ("a", "an") and words[1] in MULTIPLES:
        group = count = 1
    while count < len(words):
        word = words[count]
        value = CARDINALS.get(word)
        if value is not None:
            open_tens = group % 100 in range(20, 100, 10) and 0 < value < 10
            if not open_tens and (group % 100 or (count and words[count - 1] in CARDINALS)):
                break
            group += value
        elif word == "hundred" and 0 < group < 100:
            group *= 100
        elif word in MULTIPLES and group and MULTIPLES[word] < scale:
            scale = MULTIPLES[word]
            total, group = total + group * scale, 0
        elif not (
            word == "and"
            and (count and words[count - 1] in MULTIPLES)
            and "".join(words[count + 1 : count + 2]) in CARDINALS
        ):
            break
        count += 1
    return total + group, count


def _part(words: list[str]) -> tuple[Fraction | None, int]:
    """The fraction at the start: half, a third, two thirds."""
    article = words[:1] in (["a"], ["an"]) and len(words) > 1 and words[1] in _PARTS
    above, count = (1, 1) if article else _cardinal(words)
    bare = not count and words[:1] == ["half"]
    name = words[count] if count < len(words) else ""
    below = (_PARTS if above == 1 or bare else _PLURALS).get(name)
    if below is None or not (count or bare):
        return None, 0
    return Fraction(1 if bare else above, below), count + 1


def _mixed(words: list[str]) -> tuple[Fraction | None, int]:
    value, count = _part(words)
    if value is None:
        whole, count = _cardinal(words)
        if not count:
            return None, 0
        value = Fraction(whole)
        if words[count : count + 1] == ["and"]:
            part, more = _part(words[count + 1 :])
            if part is not None and part < 1:
                value, count = value + part, count + 1 + more
    if value.denominator > 1 and (scale := MULTIPLES.get("".join(words[count : count + 1]))):
        value, count = value * scale, count + 1
    return value, count
