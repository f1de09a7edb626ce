"""Tokens of an answer: LaTeX, ASCII mathematics and words, in one flat list."""

from __future__ import annotations

import re
from typing import NamedTuple

from rlobj.answers.vocabulary import (
    ACCENTS,
    ASCII,
    CONSTANTS,
    FONTS,
    FRACTIONS,
    FUNCTIONS,
    GREEK,
    LATEX,
    NOTHING,
    SKIPPED_ARGUMENT,
    SYMBOLS,
    TEXTS,
    WORDS,
)

__all__ = [
    "Token",
    "Unreadable",
    "latex",
    "matching",
    "spell",
    "tokenise",
]


class Unreadable(ValueError):
    """What this package cannot read."""


class Token(NamedTuple):
    """A piece of an answer."""

    kind: str
    """number, name, word, text, symbol, command (takes arguments), begin or end (environments)."""
    text: str
    spaced: bool = False
    """Whether a blank stands before it."""


_TOKEN = re.compile(
    r"(?P<blank>[\s~]+|\\\(|\\\)|\\\[|\\\]|\$)"
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|\\(?P<escape>.)"
    r"|(?P<module>(?:np|math|sympy|sp)\.)(?=[a-z])"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<symbol><=|>=|!=|:=|==|\*\*|.)",
    re.DOTALL,
)
_UNIT = re.compile(r"(?:[A-Za-z°]+(?:\^\{?-?[0-9]\}?)?|\\[,;:! ]|[ /.*])+")
_SPACES = frozenset(",;:!/> \n\t")
_ROW_SKIP = re.compile(r"(?:\s*\[[0-9.]+ *[a-z]{2}\])?")
_OPEN, _CLOSE = frozenset("([{⟨⌊⌈") | {"\\{"}, frozenset(")]}⟩⌋⌉") | {"\\}"}
_MAX_NESTED = 20


def tokenise(text: str, level: int = 0) -> list[Token]:
    r"""The tokens of a cleaned answer.

    Raises:
        Unreadable: a brace is never closed, or wrappers are nested too deep.

    Example:
        >>> [token.text for token in tokenise(r"\dfrac{1}{2}x_1 \leq 3\text{ cm}")]
        ['frac', '{', '1', '}', '{', '2', '}', 'x', '_', '1', '<=', '3', 'cm']
    """
    if level > _MAX_NESTED:
        raise Unreadable("wrappers nested too deep")
    if "~~" in text:
        raise Unreadable("struck through")
    tokens: list[Token] = []
    place, spaced = 0, False
    while place < len(text):
        found = _TOKEN.match(text, place)
        assert found is not None  # the last alternative takes any character
        place = found.end()
        kind, piece = found.lastgroup, found[found.lastgroup or 0]
        if kind == "blank" or kind == "module":
            spaced = True
            continue
        if kind == "command":
            place = _command(piece, text, place, spaced, tokens, level)
        elif kind == "escape":
            if piece in SYMBOLS:
                tokens.append(Token("symbol", SYMBOLS[piece], spaced))
            elif piece == "\\":
                tokens.append(Token("symbol", "\\\\", spaced))
                place = _ROW_SKIP.match(text, place).end()  # type: ignore[union-attr]
            elif piece not in _SPACES:
                raise Unreadable(f"stray \\{piece}")
        elif kind == "word":
            tokens.append(_word(piece, spaced))
        elif kind == "number":
            tokens.append(Token("number", piece, spaced))
        else:
            tokens.append(Token("symbol", ASCII.get(piece, piece), spaced))
        spaced = kind == "escape" and piece in ",;:! "
    return _subscripts(tokens)


def _subscripts(tokens: list[Token]) -> list[Token]:
    """Words in a subscript are part of a name."""
    for index in range(1, len(tokens)):
        if tokens[index].kind in ("text", "word"):
            before = tokens[index - 1].text
            if before == "{" and index > 1:
                before = tokens[index - 2].text
                if before == "{" and index > 2:  # a font inside the braces
                    before = tokens[index - 3].text
                if before == "_":
                    tokens[index] = Token("name", tokens[index].text)
            elif before == "_" and tokens[index].kind == "text":
                tokens[index] = Token("name", tokens[index].text)
    return tokens


def matching(tokens: list[Token], start: int) -> int:
    """Index of the bracket that closes the one at `start`; brackets of any kind pair up.

    Raises:
        Unreadable: there is none.
    """
    depth = 0
    for index in range(start, len(tokens)):
        kind, symbol, _ = tokens[index]
        if kind == "symbol":
            depth += (symbol in _OPEN) - (symbol in _CLOSE)
        elif kind in ("begin", "end"):
            depth += 1 if kind == "begin" else -1
        if depth == 0:
            return index
    raise Unreadable("a bracket is never closed")


def spell(tokens: list[Token]) -> str:
    """One spelling of a run of tokens, for names and for comparing what cannot be read."""
    return " ".join(token.text for token in tokens if token.text not in ("{", "}"))


def latex(tokens: list[Token]) -> str:
    """Tokens as LaTeX again, without what changes nothing."""
    return " ".join(LATEX.get(t.text, f"\\{t.text}") if _is_command(t) else t.text for t in tokens)


def _is_command(token: Token) -> bool:
    if token.kind == "symbol":
        return token.text in LATEX
    return token.kind == "command" or (token.kind == "name" and token.text in GREEK)


def _word(word: str, spaced: bool) -> Token:
    if len(word) == 1:
        return Token("name", word, spaced)
    if word in FUNCTIONS:
        return Token("command", word, spaced)
    if word in WORDS:
        return Token("symbol", WORDS[word], spaced)
    if word in CONSTANTS:
        return Token("symbol", "∞", spaced) if CONSTANTS[word] == "∞" else Token("name", word)
    return Token("name" if word in GREEK else "word", word, spaced)


def _command(
    name: str, text: str, place: int, spaced: bool, tokens: list[Token], level: int
) -> int:
    """Append what a command stands for; return where the text goes on."""
    name = FRACTIONS.get(name, name)
    if name in NOTHING:
        if name in ("left", "right") and text[place : place + 1] == ".":
            return place + 1
    elif name in SYMBOLS:
        tokens.append(Token("symbol", SYMBOLS[name], spaced))
    elif name in SKIPPED_ARGUMENT:
        return _argument(text, place)[1]
    elif name in FONTS or name in TEXTS:
        content, place = _argument(text, place)
        tokens.extend(_wrapped(content, name in TEXTS, spaced, level))
    elif name in ("begin", "end"):
        environment, place = _argument(text, place)
        tokens.append(Token(name, environment.strip("* "), spaced))
        if environment == "array" and name == "begin":
            place = _argument(text, place)[1]
    elif name in ACCENTS:
        content, after = _argument(text, place)
        repeating = name in ("overline", "bar", "dot") and content.strip().isdecimal()
        if repeating and tokens and re.fullmatch(r"[0-9]*\.[0-9]*", tokens[-1].text):
            tokens[-1] = Token("number", f"{tokens[-1].text}({content.strip()})")
        else:
            tokens.append(Token("name", f"{name}:{spell(tokenise(content, level + 1))}", spaced))
        return after
    elif name == "mod" or (name not in CONSTANTS and name not in GREEK) or name == "Gamma":
        tokens.append(Token("command", name, spaced))
    else:
        tokens.append(Token("name", name, spaced))
    return place


def _argument(text: str, place: int) -> tuple[str, int]:
    """The braced group (or else the one character) at a place, and where the text goes on."""
    while place < len(text) and text[place].isspace():
        place += 1
    if text[place : place + 1] != "{":
        return text[place : place + 1], place + 1
    depth = 0
    for mark in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, place):
        depth += (mark[0] == "{") - (mark[0] == "}")
        if depth == 0:
            return text[place + 1 : mark.start()], mark.end()
    raise Unreadable("a brace is never closed")


def _wrapped(content: str, is_text: bool, spaced: bool, level: int) -> list[Token]:
    """A font changes nothing; words in text are words, and digits in it are mathematics."""
    words = re.sub(r"(?<!\\)\$", "", content).strip()
    if is_text:
        if (word := words.lower().strip(" ,")) in WORDS:
            return [Token("symbol", WORDS[word])]
        if words in FUNCTIONS:
            return [Token("command", words, spaced)]
        if words.isalpha() and words.isupper() and 2 <= len(words) <= 5:
            return [Token("word", words, spaced)]
        if words in ("e", "i", "d"):
            return [Token("name", words, spaced)]
        if not re.match(r"[-+.]?[0-9]", words) and _is_prose(words):
            return [Token("text", words, spaced)]
    inside = tokenise(words, level + 1)
    if len(inside) < 2:
        return inside
    return [Token("symbol", "{", spaced), *inside, Token("symbol", "}")]


def _is_prose(words: str) -> bool:
    """Whether text holds words, and not mathematics that was put into text."""
    if re.search("[A-Za-z]{4}", words) or _UNIT.fullmatch(words):
        return True
    mathematics = words.startswith("\\") or re.search(r"[0-9=]|\bor\b", words)
    return bool(re.search("[A-Za-z]", words)) and not mathematics
