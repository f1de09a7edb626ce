"""The sentences of a response, and whether the sentence of an answer asserts it.

A sentence ends at a full stop, `!` or `?` before a blank, at a blank line, and at the end of a line
or of displayed mathematics. It does not end there if it goes on with a small letter, with displayed
mathematics, or with "or".
"""

import re
from collections.abc import Iterator

from rlobj.answers.vocabulary import LISTS

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


_BEFORE = 300
_AFTER = 400
"""How much of the text before and after an answer is read, in characters."""


def _any(name: str) -> str:
    """Pattern of one of the phrases of a list."""
    return f"(?:{'|'.join(' '.join(LISTS['assertions'][name].split()).split(', '))})"


_CONDITION = r"\b(?:if|had|were|without|unless|otherwise|ignoring|assuming)\b"
_DENYING, _LIGHT, _LINKS, _FAULTS = map(_any, ("denying", "light", "links", "faults"))
_UNSURE = r"(?:(?:not|n't)(?: [\w%]+){0,2} (?:sure|certain|confident|know)|unsure)\b"
_DENIED_BEFORE = re.compile(
    rf"(?:\b{_DENYING}\b|\\(?:neq?|not)\b|≠|!=|不是|并非|не )(?: ?{_LIGHT}(?![a-z]))*[ (:]*\Z"
    rf"|\beither\b.*\bor\b[^,]*\Z|\bwould(?: have|'ve) \w+|{_CONDITION}.*\b(?:would|were)\b"
    rf"|{_UNSURE}(?!.*\bnow\b)"
)
_DENIED_AFTER = re.compile(
    r"(?:.*?[,;—–…] ?(?=(?:but|it|this|that|wait)\b))?"
    rf"[\W_]*(?:{_LINKS}\b[\W_]*)*{_FAULTS}\b(?! for\b)|[^,]*?{_UNSURE}"
)
_OTHER_NUMBER = re.compile(
    r"[ ,;.(\[—–-]*or (?:maybe )?(-?[0-9]+)(?=[ ,.;!)\]]|\Z)(?! ?[a-z])"
    r"|[\s{}]*= ?(-?[0-9]+)[\s.!]*\Z"
)
_OPERATOR = r"(?:[-+*/^]|\\(?:cdot|times|div|pm)(?![a-z]))"
_BESIDE_AFTER = re.compile(
    rf"(?:{_OPERATOR}(?! )|\s*(?:[+*/]|\\(?:cdot|times|div|pm)(?![a-z]))\s*)(?!\{{?\\circ|-)"
    r"(?:[0-9({]|[a-z](?![a-z])|\\(?:frac|sqrt|pi)\b)|[a-z](?![a-zA-Z])(?=[$ .^+]|\Z)|\\(?:pi"
    r"|sqrt|frac)(?![a-zA-Z])"
)
_BESIDE_BEFORE = re.compile(
    rf"(?:{_OPERATOR}|(?<![=\s$&])[0-9])\s*\Z|(?<=[=(${{])\s*-\s*\Z|[0-9]\Z"
)
_HIDDEN = (("<!--", "-->"), (r"\iffalse", r"\fi"), (r"\begin{comment}", r"\end{comment}"))
_STRUCK_BEFORE = re.compile(
    r"(?:\\[hv]?phantom\s*\{|\\(?:text)?color\s*\{white\}|\\verb\W|\\(?:newcommand"
    r"|def)\s*\{?\\\w+\}?\s*\{|\\(?:[bx]?cancel|sout|st)\s*\{|<(?:del|s|strike)>)[\s${(\\]*\Z"
)


def asserted(before: str, answer: str, after: str) -> bool:
    """Return whether a response asserts an answer.

    Args:
        before: the text before the answer.
        answer: the answer.
        after: the text after the answer.

    Example:
        >>> asserted("It is ", "5", "."), asserted("It is not ", "5", ".")
        (True, False)
        >>> asserted("It is ", "5", ", but that is wrong."), asserted("", "5", ". So 6 is wrong.")
        (False, True)
    """
    return _visible(before, after) and _claimed(before, answer, after)


def _visible(before: str, after: str) -> bool:
    """Return whether an answer is neither struck through, hidden nor part of a larger formula."""
    struck = before.count("~~") % 2 or _STRUCK_BEFORE.search(before[-_BEFORE:])
    hidden = any(before.rfind(start) > before.rfind(end) for start, end in _HIDDEN)
    beside = _in_math(before) and _BESIDE_BEFORE.search(before[-40:])
    return not (struck or hidden or beside or _BESIDE_AFTER.match(after))


def _claimed(before: str, answer: str, after: str) -> bool:
    """Return whether the words around an answer, in its sentence, assert it."""
    clause = _words([part for part, _ in split_sentences(before[-_BEFORE:])][-1])
    rest, mark = next(split_sentences(after)) if after.strip(" .$*}\n") else ("", "")
    rest = _words(rest[:_AFTER]) if rest else ""
    question = re.search("[?？]", mark + rest[-1:])
    if question or _DENIED_BEFORE.search(clause) or _DENIED_AFTER.match(rest):
        return False
    if clause.endswith(("would be", "would give", "would get")) and re.search(_CONDITION, rest):
        return False
    other = _OTHER_NUMBER.match(rest)
    return not (other and answer.isdecimal() and (other[1] or other[2]) != answer)


def _in_math(before: str) -> bool:
    """Return whether the text after `before` is inside math delimiters."""
    paragraph = before[max(0, before.rfind("\n\n")) :]
    pairs = ((r"\(", r"\)"), (r"\[", r"\]"))
    opened = any(paragraph.rfind(start) > paragraph.rfind(end) for start, end in pairs)
    return opened or paragraph.count("$") % 2 == 1 or paragraph.count("$$") % 2 == 1


def _words(text: str) -> str:
    """Plain text in small letters with single blanks."""
    return " ".join(plain(text).replace("’", "'").lower().split()).strip("-–—|")
