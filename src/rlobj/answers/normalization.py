"""Normalize the text of an answer: Unicode, math delimiters, markdown, thousands separators."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable

from rlobj.answers.repeating import read_repeating
from rlobj.answers.vocabulary import LISTS, table

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎", "0123456789+-()", strict=True))
_SIGNS = {
    **dict.fromkeys("−–—‒―﹣－‐‑", "-"),
    **dict.fromkeys("⁄∕÷", "/"),
    **dict.fromkeys("×⋅·∙∗", "*"),
    **dict.fromkeys("\u2009\u202f\u2006\u2005\u2008\u00a0\u200a", r"\,"),
    **dict.fromkeys(
        "\u00ad\u034f\u180e\ufe0e\ufe0f\u20e3\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff",
        "",
    ),
    **dict.fromkeys("✓✔✅☑■∎🎉", ""),
    **dict.fromkeys("°º˚", r"^\circ "),
    **dict.fromkeys("’′", "'"),
    **{letter: rf"\mathbb{{{unicodedata.normalize('NFKC', letter)}}}" for letter in "ℂℕℚℝℤ"},
    **{sign: f"\\{command} " for sign, command in table(LISTS["signs"])},
    **{"∛": r"\sqrt[3]", "¢": r"\text{ cents}", "¥": r"\text{yen}", "₹": r"\text{rupees}"},
    **{"∣": "|", "″": "''", "。": ".", "％": "%", "﹪": "%"},
}
for _code in range(ord("α"), ord("ω") + 1):
    _name = unicodedata.name(chr(_code)).rpartition("LETTER ")[2].lower()
    _name = {"lamda": "lambda", "final sigma": "varsigma"}.get(_name, _name)
    _SIGNS[chr(_code)] = f"\\{_name} "
    if _name != "varsigma":
        _SIGNS[chr(_code).upper()] = f"\\{_name.title()} "

_SCRIPT_FRACTION = re.compile("([⁰¹²³⁴-⁹]+)[⁄/]([₀-₉]+)")
_OVERLINED = re.compile("(?:[0-9]\u0305)+")
_SCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+|[{''.join(_SUBSCRIPTS)}]+")
_ROOT = re.compile(r"(\\sqrt(?:\[3\])?) ?\(([^()]*)\)")

DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_EDGE = ' \t\r\n;:"“”`'
_LABEL = re.compile(
    r"(?:the\s+)?(?:final\s+)?answer\s*(?:is|:)\s*|=\s*|\\(?:Rightarrow|implies|therefore|to)\b\s*",
    re.IGNORECASE,
)
_SPACING = re.compile(r"(?:\\[,;:! ]|\\\\|~|\\q?quad\b)\s*\Z")

_BOLD = re.compile(r"(?<=\S)\*\*(?=[\s.,:]|$)|^\*\*(?=\S)")
_ENTITY = re.compile(r"&(?:[A-Za-z]+[0-9]*|#[0-9]+|#x[0-9a-f]+);")
_TAG = re.compile(r"</?(?:b|i|strong|em|u|code|p)>|<br ?/?>")
_SCRIPT_TAG = re.compile(r"<su([pb])>([^<>]*)</su[pb]>")

_SAFE = r"(?:,\\[!,]\s*|\{,\}(?:\\!)?\s*|\\[,!;: ]\s*|~)"
_GROUPED = re.compile(rf"(?<![\d.,_^])\d{{1,3}}(?:{_SAFE}\d{{3}})+(?!\d)")
_SPACED = re.compile(r"([+-]?\s*(?:\\?\$)?\s*)(\d{1,3}(?: \d{3})+)(?!\d)")
_COMMAS = re.compile(r"(?<![\d.,_^])\d{1,3}(?:,\d{3})+(?![\d,])")


_REWRITES: list[tuple[str, str, str | Callable[[re.Match[str]], str]]] = [
    *(
        (mark, pattern.replace("VALUE", LISTS["value"]), new)
        for mark, pattern, new in LISTS["rewrites"]
    ),
    (
        "^",
        r"\^\s*(?:\{((?:\s*\\prime\b)+\s*\}|'+\})|((?:\\prime\b)+))",
        lambda run: "'" * (run[0].count("prime") or run[0].count("'")),
    ),
]
_RULES = [(mark, re.compile(pattern), replacement) for mark, pattern, replacement in _REWRITES]
"""A text that must be there, a pattern, and what replaces it; in this order."""


def normalize(text: str) -> str:
    r"""Return the answer as ASCII LaTeX, without markup around it or thousands separators.

    Example:
        >>> normalize("**½.**"), normalize(r"$12\,345$"), normalize("4.5×10³³")
        ('\\frac{1}{2}', '12345', '4.5*10^{33}')
        >>> normalize("7.2 x 10^6"), normalize("{}45^{}")
        ('7.2*10^6', '45')
    """
    if "&" in text or "</" in text:
        text = _without_html(text)
    if not text.isascii():
        text = _to_ascii(text)
    if "**" in text:
        text = _BOLD.sub("", text)
    text = _strip(text)
    for mark, pattern, replacement in _RULES:
        if mark in text:
            text = pattern.sub(replacement, text) or text
    if "." in text:
        text = read_repeating(text)
    if text.count("$") - text.count(r"\$") == 1:  # a single dollar sign is a currency
        text = re.sub(r"(?<!\\)\$", r"\\$", text)
    if _GROUPED.search(text):
        text = _GROUPED.sub(lambda run: re.sub(r"\D", "", run[0]), text)
    if (spaced := _SPACED.match(text)) and "," not in text:
        text = spaced[1] + spaced[2].replace(" ", "") + text[spaced.end() :]
    return text


def without_delimiters(text: str) -> str:
    """Remove the math delimiters around a whole text."""
    for opening, closing in DELIMITERS:
        inner = text[len(opening) : -len(closing)]
        whole = inner.strip() and text.startswith(opening) and text.endswith(closing)
        if whole and opening not in inner and closing not in inner and not inner.endswith("\\"):
            return inner
    return text


def join_comma_groups(text: str) -> str | None:
    r"""Remove the commas of numbers such as 1,234; None if the commas separate values.

    All commas must be inside such numbers and outside brackets; "1, 234" is a list.

    Example:
        >>> [join_comma_groups(text) for text in ("1,234,567", "(1,234)", "100,200,5")]
        ['1234567', None, None]
    """
    if "," not in text or not _COMMAS.search(text):
        return None
    joined = _COMMAS.sub(lambda run: run[0].replace(",", ""), text)
    return None if "," in joined or _commas_inside_brackets(text) else joined


def _without_html(text: str) -> str:
    text = _SCRIPT_TAG.sub(lambda run: f"{'^' if run[1] == 'p' else '_'}{{{run[2]}}}", text)
    return _ENTITY.sub(lambda run: html.unescape(run[0]), _TAG.sub("", text))


def _commas_inside_brackets(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth:
            return True
    return False


def _to_ascii(text: str) -> str:
    text = _OVERLINED.sub(lambda run: rf"\overline{{{run[0][::2]}}}", text)
    text = _SCRIPT_FRACTION.sub(
        lambda run: unicodedata.normalize("NFKC", f"\\frac{{{run[1]}}}{{{run[2]}}}"), text
    )
    out: list[str] = []
    for run in re.split(f"({_SCRIPT_RUN.pattern})", text):
        if run and run[0] in _SUPERSCRIPTS:
            out.append("^{" + "".join(_SUPERSCRIPTS[character] for character in run) + "}")
        elif run and run[0] in _SUBSCRIPTS:
            out.append("_{" + "".join(_SUBSCRIPTS[character] for character in run) + "}")
        else:
            out.extend(run if run.isascii() else map(_character, run))
    return _ROOT.sub(r"\1{\2}", "".join(out))


def _character(character: str) -> str:
    if character.isascii():
        return character
    if character in _SIGNS:
        return _SIGNS[character]
    if character.isdecimal():
        return str(unicodedata.digit(character))
    folded = unicodedata.normalize("NFKC", character)
    if "⁄" in folded:  # vulgar fractions
        above, _, below = folded.partition("⁄")
        return f"\\frac{{{above}}}{{{below}}}"
    return "".join(_SIGNS.get(sign, sign) for sign in folded)


def _strip(text: str) -> str:
    """Remove blanks, markdown, final punctuation and a label such as "Answer:"."""
    before = None
    while text != before:
        before = text
        text = _SPACING.sub("", text.strip(_EDGE)).removesuffix("\\").rstrip()
        if text.endswith((".", ",")) and not text.endswith(("..", r"\.", r"\,")):
            text = text[:-1]
        for mark in ("**", "__", "*", "_"):
            if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
                text = text[len(mark) : -len(mark)]
        if label := _LABEL.match(text):
            text = text[label.end() :]
        text = without_delimiters(text)
    return text
