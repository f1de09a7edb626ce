"""Words around a value, units after it, and words, choices and numerals in place of it.

Nouns are dropped: "33 ordered pairs" and "there are exactly 33" are 33. "At least 33", "33
factorial" and "33 less than n" are not 33. A unit or a multiplier (million, dozen) after the value
is kept.

A unit is text after a value (`5\\text{ cm}`), a plain word of two or more letters after a number
(`5 cm`), a currency sign or a degree sign. A single letter in mathematics is a variable, never a
unit.
"""

import re
from collections import Counter
from fractions import Fraction

from rlobj.answers import structures, vocabulary
from rlobj.answers.lexer import Token, Tokens, closing_bracket, nesting
from rlobj.answers.vocabulary import LISTS, SCALES, table, word_set

_NAMES = {alias: aliases[0] for aliases in table(LISTS["units"]) for alias in aliases}
_PREFIXED = {
    prefix + unit: prefix + unit for prefix in ("", *"fpnμmcdkMGT") for unit in LISTS["si"].split()
}
_PLAIN_EXCLUDED = _PREFIXED.keys() - _NAMES.keys() | {"mg", "ms", "au", "ly", "pc"}
"""Units that are more likely products of two letters in plain mathematics."""
PERCENT: structures.Unit = frozenset({("%", 1)})
_CURRENCIES = {"$": "$", "€": "euro", "£": "pound"}
_JOINTS = frozenset(["/", "^", "{", "}", "*", "$", "€", "£", "-", "∈", "."])
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_SPEED = re.compile(r"m/s(?:\^\{?2\}?)?")
_PIECE = re.compile(
    r"[A-Za-z°ÅμΩ_]+|\^ ?\{? ?-? ?[0-9]+ ?\}?|(?<! )[0-9]|[/*. $-]|\\(?:[A-Za-z]+|[,;:! ])"
)


def read_unit(text: str) -> structures.Unit | None:
    r"""Return the unit named by a text, or None if it is not a unit.

    Example:
        >>> sorted(read_unit("square centimeters")), sorted(read_unit("m/s^2"))
        ([('cm', 2)], [('m', 1), ('s', -2)])
        >>> read_unit("or maybe") is None
        True
    """
    exponents: Counter[str] = Counter()
    last, sign, power, position = "", 1, 1, 0
    for piece in _PIECE.finditer(text):
        if piece.start() != position:
            return None
        position, word = piece.end(), piece[0]
        lowered = word.lower()
        if word in "$*.- " or word.startswith("\\"):
            continue
        if word == "/" or lowered == "per":
            sign = -1
        elif lowered in _POWERS and position < len(text.rstrip(" .")):
            power = _POWERS[lowered]
        elif (digits := word.strip("^{} ").replace(" ", "")).lstrip("-").isdecimal():
            if not last or abs(exponents[last]) != 1:
                return None
            exponents[last] *= int(digits)
        else:
            name = _NAMES.get(word) or _PREFIXED.get(word)
            name = name or (_NAMES.get(lowered) if len(word) > 1 else None)
            if name is None:
                return None
            exponents[name] += sign * power
            last, power = name, 1
    return frozenset(exponents.items()) if position == len(text) and exponents else None


def is_unit(word: str) -> bool:
    """Return whether a word of two or more letters is the name of a unit."""
    named = word in _NAMES or word.lower() in _NAMES
    return len(word) > 1 and named and word not in _PLAIN_EXCLUDED


def split_unit(tokens: Tokens) -> tuple[Tokens, structures.Unit | None]:
    """Separate a value from the unit after it or the currency sign before it."""
    signed = len(tokens) > 1 and tokens[0].text == "-"
    if len(tokens) > 1 and (currency := _CURRENCIES.get(tokens[signed].text)):
        value = [*tokens[:signed], *tokens[signed + 1 :]]
        return split_unit(value)[0], frozenset({(currency, 1)})
    start = len(tokens)
    while start > 1 and _is_unit_part(tokens[start - 1]):
        start -= 1
    for first in range(start, len(tokens)):
        unit = _unit_of(tokens[first:], tokens[first - 1]) if first else None
        if unit is not None:
            return tokens[:first], unit
    return tokens, None


def _is_unit_part(token: Token) -> bool:
    if token.kind in ("text", "word", "number"):
        return True
    return (token.kind == "name" and token.text in "msh") or token.text in _JOINTS


def _unit_of(tokens: Tokens, before: Token) -> structures.Unit | None:
    """The unit that all of these tokens form after a value; plain words need a number first."""
    first = tokens[0]
    if first.kind == "symbol":
        currency = _CURRENCIES.get(first.text)
        return frozenset({(currency, 1)}) if currency and len(tokens) == 1 else None
    if first.kind == "text":
        return read_unit(" ".join(token.text for token in tokens).strip())
    joined = "".join(token.text for token in tokens)
    after_value = before.kind == "number" or before.text in ("}", ")", "pi", "°")
    speed = first.kind == "name" and first.spaced and after_value
    if speed and _SPEED.fullmatch(joined):
        return read_unit(joined)
    if first.kind != "word" or not all(len(t.text) > 1 or t.kind != "word" for t in tokens):
        return None
    if not after_value or any(t.text in _PLAIN_EXCLUDED for t in tokens):
        return None
    return read_unit(" ".join(token.text for token in tokens))


_CHANGES = word_set(LISTS["changes"])
"""Words after or before a value that make it another value, or none."""
_QUANTITIES = word_set("point remainder base power root percentage so")
"""Words that change a value behind it, and are the name of a value before it."""
_CHANGES_BEFORE = (_CHANGES - _QUANTITIES) | word_set(
    "negative half square cube log opposite first was"
)
_NO_NOUN = word_set(LISTS["no_noun"])
"""Words that cannot begin a noun phrase."""
_PHRASES = re.compile(LISTS["after_value"])
_CONDITION = re.compile(r"\b(?:such that|with|where|satisfying|for which)$|(?<=[a-z]{3}) of$")
_BEFORE_VALUE = re.compile(LISTS["before_value"], re.DOTALL)
_FUNCTION = re.compile(r"\b(?:answer|ans|number|integer|value|(solution|point|vector|set|pair))\Z")
_SHORT_PROSE = word_set(LISTS["short"])
"""Short words that are not products of letters."""
_FUNCTION_OF = re.compile(rf"(?:{'|'.join(sorted(vocabulary.FUNCTIONS))})[a-z]")
_WORD = re.compile(r"[A-Za-z]+(?:[-'][A-Za-z]+)*")
_MAX_UNIT = 8
_ENDS_VALUE = frozenset([")", "]", "}", "\\}", "!", "%", "°", "'", "∞", "|", "⌋", "⌉", "$", "∅"])
_SEPARATORS = frozenset([";", "or", "and", "∪"])
_MATHEMATICS = frozenset("(){},_.':") | {"\\{", "\\}"}


def strip_phrases(tokens: Tokens) -> Tokens:
    """Remove the words before and after a value; keep a multiplier and a unit after it.

    Tokens that are not a value with such words are returned as they are.
    """
    if not any(token.kind in ("text", "word") or token.text == ":" for token in tokens):
        return tokens
    return _without_noun(_without_introduction(tokens))


def is_prose(token: Token) -> bool:
    """Return whether a token is words, not a product of letters."""
    if token.kind != "word":
        return token.kind == "text"
    return token.text.lower() in _SHORT_PROSE or (len(token.text) >= 4 and not token.text.isupper())


def _without_introduction(tokens: Tokens) -> Tokens:
    end = 0
    while end < len(tokens) and (
        tokens[end].kind in ("text", "word") or tokens[end].text in "aAI#"
    ):
        end += 1
    colon = end < len(tokens) and tokens[end].text == ":"
    if not 0 < end < len(tokens) - colon:
        return tokens
    said = " ".join(token.text for token in tokens[:end]).strip() + ":" * colon
    introduces = any(map(is_prose, tokens[:end])) and _BEFORE_VALUE.fullmatch(said.lower())
    if tokens[end].text == "(" and (function := _FUNCTION.search(said.lower())):
        inside = [token.text for token in tokens[end : closing_bracket(tokens, end)]]
        introduces = introduces and function[1] and "," in inside  # vertex (1, 2)
    if not introduces or _changed(_split_words(said), _CHANGES_BEFORE):
        return tokens
    return tokens[end + colon :]


def _without_noun(tokens: Tokens) -> Tokens:
    first = _noun_position(tokens)
    if first is None or split_unit(tokens[first - 1 :])[1] is not None:
        return tokens
    words = _phrase(tokens[first:])
    if words is None:
        return tokens
    kept, words = _measure(words)
    if not words and [token.kind for token in tokens[first + 1 :]][:1] == ["name"]:
        return tokens  # 5 cm x
    aside = tokens[first].text.lstrip()[:1] in (",", "(", "-")
    noun = aside or not words or kept or _PHRASES.match(" ".join(words))
    if not noun and (words[0] in _NO_NOUN or (len(words[0]) < 3 and words[0] != "sq")):
        return tokens
    return tokens if _changed(words, _CHANGES) else [*tokens[:first], *kept]


def _noun_position(tokens: Tokens) -> int | None:
    """The first token of the words after a value, outside brackets."""
    depth = 0
    for index, token in enumerate(tokens):
        aside = token.text == "(" and any(map(is_prose, tokens[index + 1 : index + 2]))
        before = tokens[index - 1]
        if index and depth == 0 and (aside or _starts_noun(token, before)):
            article = index == 1 and before.text in ("a", "A", "I")
            ends = before.kind in ("number", "name") or before.text in _ENDS_VALUE
            return index if ends and not article else None
        if token.kind == "begin" or is_prose(token):
            return None
        depth += nesting(token)
    return None


def _starts_noun(token: Token, before: Token) -> bool:
    if token.kind == "text":
        return True
    if token.kind != "word" or not (token.spaced or is_unit(token.text)):
        return False
    if token.text in ("of", "is", "per") or (before.kind == "number" and is_unit(token.text)):
        return True
    return is_prose(token) and not _FUNCTION_OF.fullmatch(token.text)


def _phrase(tokens: Tokens) -> list[str] | None:
    """The words of a phrase; None if it holds a second value or an operator."""
    said, depth, condition = "", 0, False
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        text = token.text
        if token.kind in ("text", "word"):
            said += " " + re.sub(r"\\.", " ", text)
            condition = condition or bool(_CONDITION.search(said.lower().rstrip()))
            continue
        words_follow = following is not None and is_prose(following)
        if text in _SEPARATORS or token.kind in ("begin", "end"):
            return None
        elif text == "/" or (text == "," and depth == 0):
            if not words_follow:
                return None
        elif not condition and token.kind != "name" and text not in _MATHEMATICS:
            return None
        depth += nesting(token)
    if re.search(r"[0-9=<>+*]", said):
        return None
    return _split_words(said)


def _measure(words: list[str]) -> tuple[Tokens, list[str]]:
    """The multipliers, the percent sign and the unit at the start of a phrase, and the rest."""
    kept: Tokens = []
    while words and words[0] in SCALES:
        kept.append(Token("text", words[0]))
        words = words[1:]
    for end in range(min(len(words), _MAX_UNIT), 0, -1):
        if "in" not in words[:end] and read_unit(" ".join(words[:end])) is not None:
            return [*kept, Token("text", " ".join(words[:end]))], words[end:]
    return kept, words


def _split_words(text: str) -> list[str]:
    """Words in lower case; single letters and units such as MeV and kHz keep their case."""
    return [w if len(w) == 1 or is_unit(w) else w.lower() for w in _WORD.findall(text)]


def _changed(words: list[str], changes: frozenset[str]) -> bool:
    return any(
        word in changes
        or word.endswith("n't")
        or vocabulary.NUMBER_WORDS.issuperset(word.split("-"))
        for word in words
    )


_NUMERAL = re.compile(
    r"([+-]?)[({]?([0-9A-Z]*[0-9][0-9A-Z]*)[)}]?"
    r"(?:_\{?\(?(?:base)?([0-9]{1,2}|[a-z]+)\)?\}?|\(?(?:in)?base([0-9]{1,2}|[a-z]+)\)?)"
)
_COMMANDS = "|".join(sorted(vocabulary.TEXTS | {"mathbf", "mathsf"}))
_TEXT = rf"\\(?:{_COMMANDS})\s*\{{([^{{}}]*)\}}"
_MARKED = re.compile(r"\\(?:text\w*|mbox|mathrm)\s*\{([^{}]*)\}")
_WRAPPER = re.compile(
    r"\\(?:text\w*|math(?:rm|bf|it|sf|tt)|[mh]box|boxed|fbox|operatorname|rm|bf)\b\s*"
)
_SPACING = re.compile(r"\\[,;:! ]|\\q?quad\b|[{}$~*]")
_ARTICLE = re.compile(LISTS["article"], re.IGNORECASE)
_LETTER = re.compile(r"\(? ?(\D) ?\)|\[(\D)\]")
_HAS_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}")
_BEFORE_WORDS = re.compile(LISTS["introduction"], re.IGNORECASE)
_LABEL = re.compile(LISTS["label"], re.IGNORECASE)
_USUAL = word_set("yes no odd even true false none all not any")
_SENTENCE = re.compile(r"[A-Za-z][A-Za-z0-9 ,.'()-]*")
_ROMAN = re.compile(r"(?=..)[IVX]+")
_MAX_NUMERAL, _MAX_LETTER = 500, 16

_NOTHING = re.compile(LISTS["nothing"])
_INFINITE = re.compile(
    r"(negative |minus )?(?:positive )?(?:infinity|infinite|infinitely many)(?: \w+)?"
)
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer)\s*)?(?:\(([A-J])\)[.:]?|([A-J])[).:])"
    r"(?:[\s~]|\\[,;:! ]|\\q?quad\b|\\hspace\{[^{}]*\})*(?P<value>.*)",
    re.IGNORECASE | re.DOTALL,
)
_CHOICE_VALUE = re.compile(
    r"[0-9.$]|-[0-9\\]|\\(?!text\w*\{\s*(?:or|and)\b)|(?!or|and|not|is|was)[A-Za-z]{2}"
)
_CHOICE_AGAIN = re.compile(r"(?<![A-Za-z\\])[A-J]\}?[).:]|\([A-J]\)|\b(?:or|and|not|wrong)\b")


def normalize_words(text: str) -> str:
    r"""Remove markup and punctuation, and convert to lower case except a single letter.

    Example:
        >>> normalize_words(r"\text{ Evelyn}."), normalize_words(r"(\textbf{C})")
        ('evelyn', 'C')
    """
    text = _WRAPPER.sub("", text)
    text = " ".join(_SPACING.sub(" ", text).split()).strip(' .,;:!"`')
    text = _ARTICLE.sub("", text)
    text = text.removesuffix(" function")
    if before := _BEFORE_WORDS.match(text) or _LABEL.match(text):
        text = text[before.end() :]
    if choice := _LETTER.fullmatch(text):
        text = choice[1] or choice[2]
    return text if len(text) == 1 else text.casefold()


def parse_based_numeral(text: str) -> structures.Structure | None:
    """Parse a numeral with its base, 52_8 or "52 base 8"; base ten gives a plain number."""
    if ("_" not in text and "base" not in text) or len(text) > _MAX_NUMERAL:
        return None
    numeral = _NUMERAL.fullmatch(re.sub(r"\\[,;! ]|\s|\$", "", re.sub(_TEXT, r"\1", text)))
    if numeral is None:
        return None
    sign, digits, subscript, spelled = numeral.groups()
    name = subscript or spelled
    base = int(name) if name.isdecimal() else vocabulary.CARDINALS.get(name, 0)
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    digits = sign.strip("+") + (digits.lstrip("0") or "0")
    return structures.scalar(Fraction(digits)) if base == 10 else structures.Based(digits, base)


def parse_special(text: str) -> structures.Structure | None:
    """Parse a numeral with a base, and words for nothing or infinity."""
    if numeral := parse_based_numeral(text):
        return numeral
    if not _HAS_WORDS.search(text):
        return None
    folded = normalize_words(text)
    if _NOTHING.fullmatch(folded):
        return structures.Items((), braces=True)
    if infinite := _INFINITE.fullmatch(folded):
        return structures.scalar(structures.MINUS_INFINITY if infinite[1] else structures.INFINITY)
    return None


def parse_choice(text: str) -> tuple[str, str] | None:
    r"""Split a choice with its value, `\textbf{(C)}\ 12`, into the letter and the value."""
    text = re.sub(rf"^(\(?){_TEXT}", r"\1\2", text, count=1)
    choice = _CHOICE.fullmatch(text)
    letter, value = (choice[1] or choice[2], choice["value"]) if choice else ("", "")
    if letter.isupper() and _CHOICE_VALUE.match(value) and not _CHOICE_AGAIN.search(value):
        return letter, value
    return None


def parse_words(text: str) -> structures.Words | None:
    """Parse words; otherwise a word would be a product of letters and equal its anagrams."""
    if len(text) > _MAX_LETTER and not _HAS_WORDS.search(text):
        return None
    folded = normalize_words(text)
    marked = _MARKED.fullmatch(text)
    if len(folded) == 1 and folded.isalpha() and (folded.isupper() or marked):
        return structures.Words(folded)
    if re.search(r"\bor\b|\band\b", folded):
        return None
    if marked and _SENTENCE.fullmatch(marked[1].strip()) and re.search("[A-Za-z]{3}", folded):
        return structures.Words(folded)
    if not re.fullmatch(r"[a-z]+(?:[ '-][a-z]+)*", folded):
        return None
    plain = _MARKED.sub(r"\1", text).strip()
    if _ROMAN.fullmatch(plain):
        return structures.Words(folded)
    if "\\" in plain or (plain.isupper() and len(plain) < 6):
        return None
    said = re.fullmatch("[A-Za-z]{4,}", plain) or (" " in folded and re.search("[a-z]{3}", folded))
    return structures.Words(folded) if marked or folded in _USUAL or said else None
