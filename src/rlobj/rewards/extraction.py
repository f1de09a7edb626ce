r"""Which piece of a response is its final answer: one rule, text in and text out.

1. A response whose last `<think>` is never closed has no answer.
2. The answer is the last closed, non-empty `\boxed{...}` (or `\fbox{...}`), braces matched.
3. Without such a box it is what follows the last anchored phrase: `answer is`, `answer:`,
   `answer =`, a `Final Answer` heading, or `####` on the last line. Math delimiters are taken off
   unless alternatives follow ("$1$ or $2$"); plain text ends with its sentence. A negated phrase
   ("the answer is not", "I don't think the answer is"), an unclosed box and an unclosed math
   delimiter are no answer.
4. Where thinking was closed, the text after `</think>` is read first, and all of the response only
   if that text has no answer.

A bare number in prose is never an answer.
"""

from __future__ import annotations

import re

__all__ = ["bare", "extract_answer", "last_box"]

_BOX = re.compile(r"\\+(?:boxed|fbox)\s*\{")
_BRACES = re.compile(rf"(?P<box>{_BOX.pattern})|\\.|[{{}}]", re.DOTALL)
_PHRASE = re.compile(
    r"\banswer[*_]*\s*(?:is\b|[:=])"
    r"|^[#*_ \t]*final answer[*_ \t]*$"
    r"|^[ \t]*####(?=[^#\n]*\S[^\n]*\s*\Z)",
    re.IGNORECASE | re.MULTILINE,
)
_NEGATED_BEFORE = re.compile(r"(?:n't|\bnot|\bnever|\bcannot)\s+(?:\w+\s+){0,4}$", re.IGNORECASE)
_NEGATED_AFTER = re.compile(r"(?:not|never|neither|unknown|unclear|undetermined)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.?](?=\s|$)|,?\s+(?:because|since|which|so|where|for)\b")
_ALTERNATIVE = re.compile(
    r"\s*(?:[,;]|(?:[,;]\s*)?(?:or|and)\b)\s*(?:maybe |perhaps |possibly )?(?:\$|\\\(|[-0-9])"
)
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_LEAD = " \t\r\n:=*_"


def extract_answer(response: str) -> str | None:
    """The final answer of a response by the rule of this module, or None.

    Example:
        >>> extract_answer(r"Maybe \\boxed{3}, no: \\boxed{\\frac{1}{2}}")
        '\\\\frac{1}{2}'
        >>> extract_answer("So the final answer is $12$.")
        '12'
        >>> extract_answer("I count 12 of them.") is None
        True
    """
    thought, closing, final = response.rpartition("</think>")
    if "<think>" in final:
        return None
    answer = _extract(final)
    if answer is None and closing:
        answer = _extract(thought)
    return answer


def bare(text: str) -> str:
    """The text without surrounding blanks, bold marks, math delimiters and a closing full stop."""
    text = text.strip().strip("*").strip()
    text = text.removesuffix(".").rstrip()
    for opening, closing in _DELIMITERS:
        inner = text[len(opening) : -len(closing)]
        wrapped = text.startswith(opening) and text.endswith(closing)
        if wrapped and inner.strip() and opening not in inner and closing not in inner:
            return inner.strip()
    return text


def last_box(text: str) -> str | None:
    """Content of the closed, non-empty box that opens last; one pass over the text."""
    first = _BOX.search(text)
    if first is None:
        return None
    opened: list[tuple[int, bool]] = []  # where the content of each open brace starts; is it a box
    found: tuple[int, str] | None = None
    for mark in _BRACES.finditer(text, first.start()):
        if mark["box"] or mark[0] == "{":
            opened.append((mark.end(), mark["box"] is not None))
        elif mark[0] == "}" and opened:
            start, box = opened.pop()
            if box and (found is None or start > found[0]):
                content = text[start : mark.start()].strip()
                found = (start, content) if content else found
    return found[1] if found else None


def _extract(text: str) -> str | None:
    box = last_box(text)
    answer = bare(box) if box is not None else _after_phrase(text)
    return answer or None


def _after_phrase(text: str) -> str | None:
    phrases = list(_PHRASE.finditer(text))
    if not phrases:
        return None
    phrase = phrases[-1]
    if _NEGATED_BEFORE.search(text[max(0, phrase.start() - 60) : phrase.start()]):
        return None
    tail = text[phrase.end() :].lstrip(_LEAD)
    if _NEGATED_AFTER.match(tail):
        return None
    for opening, closing in _DELIMITERS:
        if tail.startswith(opening):
            content, closed, rest = tail[len(opening) :].partition(closing)
            answer = content.strip() if closed else ""
            if not _ALTERNATIVE.match(rest):
                break
    else:
        line = tail.partition("\n")[0]
        answer = bare(_SENTENCE_END.split(line, maxsplit=1)[0].strip("*_ \t"))
    return None if re.search(r"\\f?box(?:ed)?\b", answer) else answer
