"""Text -> tokens: normalize an answer, and split it into LaTeX, ASCII mathematics and words."""

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from rlobj.answers import vocabulary
from rlobj.answers.vocabulary import BRACKETS, CONSTANTS, FUNCTIONS, GREEK, LISTS, SYMBOLS, table

_DIGITS = r"([0-9]*\.[0-9]*)"
_BAR = re.compile(_DIGITS + r"\s*\\(?:overline|overbar|bar)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_DOTS = re.compile(
    _DIGITS + r"\s*\\dot\s*\{?([0-9])\}?(?:\s*([0-9]*)\s*\\dot\s*\{?([0-9])\}?)?(?![0-9])"
)
_CONTINUED = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]+)\s*(?:\.\.+|\\[lc]?dots(?:\b|$))\s*")


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
    decimals, covered = None, 2
    for length in range(1, len(digits) // 2 + 1):
        same = len(digits) - length
        while same and digits[same - 1] == digits[same - 1 + length]:
            same -= 1
        if len(digits) - same >= max(2 * length, covered + 1):
            decimals = f"{digits[:same]}({digits[same : same + length]})"
            covered = len(digits) - same
    return decimals


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
    (
        r"\circ",
        r"([0-9]+)\s*\\circ\s*([0-9]+)\s*'(?!')(?:\s*([0-9]+(?:\.[0-9]+)?)\s*(?:''|\"))?",
        lambda run: rf"{int(run[1]) + Fraction(run[2]) / 60 + Fraction(run[3] or 0) / 3600}\circ",
    ),
]
_RULES = [(mark, re.compile(pattern), replacement) for mark, pattern, replacement in _REWRITES]
"""A text that must be there, a pattern, and what replaces it; in this order."""


def normalize(text: str) -> str:
    r"""Return the answer as ASCII LaTeX, without markup around it or thousands separators.

    Example:
        >>> normalize("**½.**"), normalize(r"$12\,345$"), normalize("4.5×10³³")
        ('\\frac{1}{2}', '12345', '4.5*10^{33}')
        >>> normalize("{}45^{}")
        '45'
    """
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
    depths = accumulate((character in "([{") - (character in ")]}") for character in text)
    bracketed = any(depth and mark == "," for depth, mark in zip(depths, text, strict=True))
    return None if "," in joined or bracketed else joined


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


class Unreadable(ValueError):
    """Text that this package cannot parse."""


class Unsupported(Unreadable):
    """Mathematics that the parser does not support, but a computer algebra system may."""


class Token(NamedTuple):
    """A piece of an answer."""

    kind: str
    """number, name, word, text, symbol, command (takes arguments), begin or end (environments)."""
    text: str
    spaced: bool = False
    """Whether there is a blank before it."""


Tokens = list[Token]

_TOKEN = re.compile(
    r"(?P<blank>[\s~]+|\\\(|\\\)|\\\[|\\\]|\$)"
    r"|(?P<number>[0-9]*\.[0-9]*\([0-9]+\)|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|\\(?P<escape>.)"
    r"|(?P<module>(?:np|math|sympy|sp)\.)(?=[a-z])"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<symbol><=|>=|!=|:=|==|\*\*|.)",
    re.DOTALL,
)
_UNIT = re.compile(r"(?:[A-Za-z°ÅμΩ]+(?:\^\{?-?[0-9]\}?)?|\\[,;:! ]|[ /.*])+")
_APPLIED = re.compile(r"(?:\s|\\[,:;! ]|\\left|\{)*\(")
_COLOR = re.compile(r"\s*(?!white|transparent|none)[A-Za-z]+(?:![0-9]+)?\s*")
_DOTTED = frozenset(["dot", "ddot"])
_VALUE_IN_TEXT = re.compile(r"\$([^$]+)\$|(?<![\w^{-])([-+]?[0-9][0-9.,/]*(?<![.,/]))(?![\w}-])")
_EMPTY_GROUP = re.compile(r"\{\s*\}")
_TAKES_GROUP = frozenset(["^", "_", "{", "}"])
_SPACES = frozenset(",;:!/> \n\t")
_ROW_SKIP = re.compile(r"(?:\s*\[[0-9.]+ *[a-z]{2}\])?")
_CLOSING = frozenset(BRACKETS.values())
_MAX_NESTED = 20
_MAX_PARTS = 2000


def tokenise(text: str, level: int = 0) -> list[Token]:
    r"""Return the tokens of a normalized answer.

    Raises:
        Unreadable: a brace is not closed, or wrappers are nested too deeply.

    Example:
        >>> [token.text for token in tokenise(r"\dfrac{1}{2}x_1 \leq 3\text{ cm}")]
        ['frac', '{', '1', '}', '{', '2', '}', 'x', '_', '1', '<=', '3', 'cm']
    """
    if level > _MAX_NESTED:
        raise Unreadable("wrappers nested too deep")
    if "~~" in text:
        raise Unreadable("struck through")
    tokens: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        token = _TOKEN.match(text, position)
        assert token is not None  # the last alternative matches any character
        position = token.end()
        kind, piece = token.lastgroup, token[token.lastgroup or 0]
        if kind == "blank" or kind == "module":
            spaced = True
            continue
        if kind == "command":
            position = _command(piece, text, position, spaced, tokens, level)
        elif kind == "escape":
            if piece in SYMBOLS:
                tokens.append(Token("symbol", SYMBOLS[piece], spaced))
            elif piece == "\\":
                tokens.append(Token("symbol", "\\\\", spaced))
                position = _ROW_SKIP.match(text, position).end()  # type: ignore[union-attr]
            elif piece not in _SPACES:
                raise Unreadable(f"stray \\{piece}")
        elif kind == "word":
            is_time = _ends_as_time(piece, tokens, text, position)
            tokens.append(Token("text", piece) if is_time else _word(piece, spaced))
        elif kind == "number":
            tokens.append(Token("number", piece, spaced))
        else:
            kind = "text" if piece == "Å" else "symbol"
            tokens.append(Token(kind, vocabulary.ASCII.get(piece, piece), spaced))
        spaced = kind == "escape" and piece in ",;:! "
    return _subscripts(_without_empty_groups(tokens) if _EMPTY_GROUP.search(text) else tokens)


def _without_empty_groups(tokens: list[Token]) -> list[Token]:
    kept: list[Token] = []
    for token in tokens:
        value = len(kept) > 1 and kept[-2].kind != "command" and kept[-2].text not in _TAKES_GROUP
        if value and token[:2] == ("symbol", "}") and kept[-1][:2] == ("symbol", "{"):
            kept.pop()
        else:
            kept.append(token)
    return kept


def _subscripts(tokens: list[Token]) -> list[Token]:
    """Turn words in subscripts into names."""
    for index, token in enumerate(tokens):
        if token.kind in ("text", "word"):
            before = index - 1
            while before > 0 and tokens[before].text == "{":
                before -= 1
            braced = before < index - 1
            if tokens[before].text == "_" and index and (braced or token.kind == "text"):
                tokens[index] = Token("name", token.text)
    return tokens


def nesting(token: Token) -> int:
    """Return 1 for a bracket or environment that opens, -1 for one that closes, else 0."""
    if token.kind in ("begin", "end"):
        return 1 if token.kind == "begin" else -1
    return token.kind == "symbol" and (token.text in BRACKETS) - (token.text in _CLOSING)


def closing_bracket(tokens: list[Token], start: int) -> int:
    """Return the index of the bracket that closes the one at `start`; kinds may differ.

    Raises:
        Unreadable: the bracket is not closed.
    """
    depth = 0
    for index in range(start, len(tokens)):
        depth += nesting(tokens[index])
        if depth == 0:
            return index
    raise Unreadable("a bracket is never closed")


def is_enclosed(tokens: list[Token], start: int = 0) -> bool:
    """Return whether the last token closes the bracket at `start`."""
    return closing_bracket(tokens, start) == len(tokens) - 1


def split(tokens: list[Token], at: frozenset[str]) -> tuple[list[list[Token]], list[str]]:
    """Split at separators outside all brackets; return the parts and the separators."""
    if at.isdisjoint([token.text for token in tokens]):
        return [tokens], []
    runs: list[list[Token]] = [[]]
    separators: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        end = index
        if token.kind == "symbol" and token.text in at:
            runs.append([])
            separators.append(token.text)
        else:
            if nesting(token) > 0:
                end = closing_bracket(tokens, index)
            runs[-1].extend(tokens[index : end + 1])
        index = end + 1
        if len(runs) > _MAX_PARTS:
            raise Unreadable("too many parts")
    return runs, separators


def join_text(tokens: list[Token]) -> str:
    """Join the text of tokens, without braces."""
    return " ".join(token.text for token in tokens if token.text not in ("{", "}"))


def latex(tokens: list[Token]) -> str:
    """Join tokens as LaTeX, without commands that have no meaning."""
    names = vocabulary.LATEX
    return " ".join(names.get(t.text, f"\\{t.text}") if _is_command(t) else t.text for t in tokens)


def _is_command(token: Token) -> bool:
    if token.kind == "symbol":
        return token.text in vocabulary.LATEX
    return token.kind == "command" or (
        token.kind == "name" and (token.text in GREEK or token.text == "pi")
    )


def _ends_as_time(word: str, tokens: list[Token], text: str, position: int) -> bool:
    """Return whether min and sec are minutes and seconds: after a number, without an argument."""
    time = word in ("min", "sec", "arcsec") and bool(tokens)
    after_number = time and (tokens[-1].kind == "number" or tokens[-1].text in "})")
    return after_number and not re.match(r"\s*[\\({_^a-z0-9]", text[position : position + 9])


def _word(word: str, spaced: bool) -> Token:
    if len(word) == 1:
        return Token("name", word, spaced)
    if word in FUNCTIONS:
        return Token("command", word, spaced)
    if word in vocabulary.WORDS:
        return Token("symbol", vocabulary.WORDS[word], spaced)
    if word in CONSTANTS:
        return Token("symbol", "∞", spaced) if CONSTANTS[word] == "∞" else Token("name", word)
    return Token("name" if word in GREEK else "word", word, spaced)


def _command(
    name: str, text: str, position: int, spaced: bool, tokens: list[Token], level: int
) -> int:
    """Append the tokens of a command; return the position after it."""
    name = vocabulary.FRACTIONS.get(name, name)
    if name in vocabulary.IGNORED:
        if name in ("left", "right") and text[position : position + 1] == ".":
            return position + 1
    elif name in SYMBOLS:
        tokens.append(Token("symbol", SYMBOLS[name], spaced))
    elif name in vocabulary.SKIPPED_ARGUMENT:
        argument, position = _argument(text, position)
        if name in ("color", "textcolor") and not _COLOR.fullmatch(argument):
            raise Unreadable(f"text in the color {argument}")
        if argument.startswith("-"):
            raise Unreadable("text over text")
    elif name in vocabulary.FONTS or name in vocabulary.TEXTS:
        content, position = _argument(text, position)
        if (
            name == "operatorname"
            and content.replace(" ", "").isalpha()
            and _APPLIED.match(text, position)
        ):
            tokens.append(Token("command", content, spaced))
        elif _ends_as_time(content.strip(" ."), tokens, text, position):
            tokens.append(Token("text", content.strip(" .")))
        else:
            tokens.extend(_wrapped(content, name in vocabulary.TEXTS, spaced, level))
    elif name in ("begin", "end"):
        environment, position = _argument(text, position)
        tokens.append(Token(name, environment.strip("* "), spaced))
        if environment == "array" and name == "begin":
            position = _argument(text, position)[1]
    elif name in vocabulary.ACCENTS:
        content, after = _argument(text, position)
        if name in _DOTTED and len(content.strip()) > 0:
            primes = [Token("symbol", "'")] * (1 + (name == "ddot"))
            tokens.extend((*tokenise(content, level + 1), *primes))
        else:
            accented = f"{name}:{join_text(tokenise(content, level + 1))}"
            tokens.append(Token("name", accented, spaced))
        return after
    elif name == "mod" or (name not in CONSTANTS and name not in GREEK) or name == "Gamma":
        tokens.append(Token("command", name, spaced))
    else:
        tokens.append(Token("name", name, spaced))
    return position


def _argument(text: str, position: int) -> tuple[str, int]:
    """The braced group (or else one character) at a position, and the position after it."""
    while position < len(text) and text[position].isspace():
        position += 1
    if text[position : position + 1] != "{":
        return text[position : position + 1], position + 1
    depth = 0
    for mark in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, position):
        depth += (mark[0] == "{") - (mark[0] == "}")
        if depth == 0:
            return text[position + 1 : mark.start()], mark.end()
    raise Unreadable("a brace is never closed")


def _wrapped(content: str, is_text: bool, spaced: bool, level: int) -> list[Token]:
    """Tokens of the argument of a font or text command; digits in text are mathematics."""
    words = re.sub(r"(?<!\\)\$", "", content).strip()
    if is_text:
        if symbol := vocabulary.TEXT_WORDS.get(words.lower().strip(" ,")):
            return [Token("symbol", symbol)]
        if words in FUNCTIONS:
            return [Token("command", words, spaced)]
        if words.isalpha() and words.isupper() and 2 <= len(words) <= 5:
            return [Token("word", words, spaced)]
        if words in ("e", "i", "d") or (content == "K" and not spaced):  # 5K is not 5 kelvin
            return [Token("name", words, spaced)]
        if not re.match(r"(?:\\\$|[-+.])?[0-9]", words) and _is_prose(words):
            return _sentence(content, spaced, level)
    inside = tokenise(words, level + 1)
    if len(inside) < 2:
        return inside
    return [Token("symbol", "{", spaced), *inside, Token("symbol", "}")]


def _sentence(content: str, spaced: bool, level: int) -> list[Token]:
    """Tokens of prose: its words, and the numbers and formulas among them."""
    tokens: list[Token] = []
    position = 0
    for value in [*_VALUE_IN_TEXT.finditer(content), None]:
        words = content[position : value.start() if value else None].strip(" $")
        tokens += _words(words, spaced)
        if value:
            tokens += tokenise(value[1] or value[2], level + 1)
            position = value.end()
    return tokens


def _words(words: str, spaced: bool) -> list[Token]:
    """Tokens of words; "and" and "or" at their ends are symbols."""
    first, last = words.partition(" "), words.rpartition(" ")
    if words in ("and", "or"):
        return [Token("symbol", words)]
    if first[0] in ("and", "or"):
        return [Token("symbol", first[0]), *_words(first[2], spaced)]
    if last[2] in ("and", "or"):
        return [*_words(last[0], spaced), Token("symbol", last[2])]
    return [Token("text", words, spaced)] if words else []


def _is_prose(words: str) -> bool:
    """Return whether text is words, not mathematics inside a text command."""
    if re.search("[A-Za-z]{4}", words) or _UNIT.fullmatch(words):
        return True
    mathematics = words.startswith("\\") or re.search(r"[0-9=]|\bor\b", words)
    return bool(re.search("[A-Za-z]", words)) and not mathematics
