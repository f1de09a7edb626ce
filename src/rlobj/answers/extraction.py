r"""Extract the final answer of a response. The rule:

1. If the last thinking tag (`<think>` and similar tags) is not closed, there is no answer.
2. The answer is the last closed, nonempty `\boxed{...}` or `\fbox{...}`; of nested boxes, the
   outer one. "It is not \boxed{5}" has no answer.
3. Without a box, the answer is the text after the last of these phrases: `answer is`, `answer:`,
   `answer =`, a `Final Answer` heading, or `####` on the last line. Math delimiters are removed
   unless alternatives follow ("$1$ or $2$"); plain text ends at the end of the sentence. These
   are not answers: a negated, doubtful or hypothetical phrase ("the answer is not", "if the answer
   is"), a correction ("is 5. Or 6."), a question, an unclosed box, an unclosed math delimiter.
4. If the thinking tag is closed, the text after it is read first. The text inside is read only if
   the text after it has neither a box nor a phrase.

A number in prose is never an answer.
"""

from __future__ import annotations

import collections
import re

_TAG = r"think(?:ing)?|reasoning|thoughts?|\|begin_of_thought\||\|end_of_thought\|"
_OPENED = re.compile(rf"(?:<\s*(?!\|end)(?:{_TAG})\s*>|◁think▷|\[THINK\])", re.IGNORECASE)
_CLOSED = re.compile(
    r"(?:<\s*/\s*(?:think(?:ing)?|reasoning|thoughts?)\s*>|<\|end_of_thought\|>|◁/think▷|\[/THINK\])",
    re.IGNORECASE,
)
# Every pattern here takes linear time on any text.
_END_TOKENS = re.compile(r"(?:\s*(?:<\|[a-z_]{1,30}\|>|</s>|<eos>|<end_of_turn>))+\s*\Z")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_BRACES = re.compile(
    rf"(?P<box>{_BOX.pattern})|\\[^\\]|\\\\(?!boxed|fbox|framebox)|[{{}}]", re.DOTALL
)
_BLANK = re.compile(r"(?:[\s~{}$]|\\[,;:! ]|\\q?quad\b|\\(?:text|mbox)\s*(?=\{))*")
_PHRASE = re.compile(
    r"(?<![a-z])answers?(?: to (?:the|this) (?:question|problem))?[*_]*\s*(?:(?:is|are)\b|[:=])"
    r"|^[#*_ \t]*(?:final )?answer[*_ \t]*$"
    r"|^[ \t]*####(?=[^#\n]*\S[^\n]*\s*\Z)"
    r"|答案(?:是|为|：)",
    re.IGNORECASE | re.MULTILINE,
)
_NEGATED_BEFORE = re.compile(
    r"(?:(?:n't|\bnot|\bnever|\bcannot|\bnobody|\bno one)\s+(?:\w+\s+){0,4}"
    r"|\b(?:doubt|deny|suppose|assume|if|whether|unless|unlikely|wrong|false|incorrect)"
    r"(?: to \w+)?,?\s+(?:that\s+)?(?:the\s+)?(?:\w+\s+)?)$",
    re.IGNORECASE,
)
_NEGATED_AFTER = re.compile(
    r"(?:\w+ly\s+)?(?:not|never|neither|no longer|unknown|unclear|undetermined|anything but)\b",
    re.IGNORECASE,
)
_BOX_NEGATED_BEFORE = re.compile(
    r"(?:\b(?:is|was|be)\s+(?:\w+ly\s+)?not|\w+n't(?: be)?|\bnot\s+equal(?:\s+to)?"
    r"|\bwrong to (?:write|say|answer))\s*[:$\\(\[*]*\s*$",
    re.IGNORECASE,
)
_BOX_NEGATED_AFTER = re.compile(
    r"[\s$*\\)\]]*(?:is|was)\s+(?:(?:\w+ly\s+)?not\b|wrong\b|incorrect\b|false\b)", re.IGNORECASE
)
_LEAD_WORDS = re.compile(
    r"(?:(?:therefore|thus|hence|simply|just|clearly|indeed|exactly|equal to|given by|then|also)"
    r"\b[\s,:]*)+",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(
    r"(?<!\.)[.?](?=\s|$)|,?(?<!\s)\s+(?:because|since|which|so|where|for|as|not|rather than)\b"
)
_ALTERNATIVE = re.compile(
    r"[0-9A-Za-z]|\s*(?:\$|\\\()"
    r"|\s*(?:[,;]|(?:[,;]\s*)?(?:or|and)\b)\s*(?:maybe |perhaps |possibly )?(?:\$|\\\(|[-0-9])"
)
_CORRECTION = re.compile(
    r"\s*(?:or|no|wait|actually|maybe|perhaps|alternatively)\b[,:]?\s*"
    r"(?:maybe |perhaps |possibly |it is |it's )?[-$\\0-9]",
    re.IGNORECASE,
)
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_PRICE = re.compile(r"\$[0-9][0-9,.]*\s*\Z")
_LEAD = " \t\r\n:=*_"
_CONTEXT = 80


def extract_answer(response: str) -> str | None:
    """Return the final answer of a response by the rule of this module, or None.

    Example:
        >>> extract_answer(r"Maybe \\boxed{3}, no: \\boxed{\\frac{1}{2}}")
        '\\\\frac{1}{2}'
        >>> extract_answer("So the final answer is $12$.")
        '12'
        >>> extract_answer("I count 12 of them.") is None
        True
    """
    thinking, final = _split_thinking(response)
    if final is None:
        return None
    answer = _extract(final)
    if answer is None and thinking and not (_BOX.search(final) or _PHRASE.search(final)):
        return _extract(thinking)
    return answer


def bare(text: str) -> str:
    """Remove surrounding blanks, bold marks, math delimiters and a final full stop."""
    text = text.strip()
    if len(text) > 4 and text.startswith("**") and text.endswith("**"):
        text = text.strip("*").strip()
    text = text.removesuffix(".").rstrip()
    for opening, closing in _DELIMITERS:
        inner = text[len(opening) : -len(closing)]
        wrapped = text.startswith(opening) and text.endswith(closing)
        if wrapped and inner.strip() and opening not in inner and closing not in inner:
            return inner.strip()
    return text


def last_box(text: str) -> str | None:
    """Return the content of the last closed, nonempty box, or None; takes linear time."""
    found = _last_box(text)
    return found[0] if found else None


def _split_thinking(response: str) -> tuple[str, str | None]:
    """Return the text up to the end of thinking, and the rest; None if thinking is not closed."""
    if "<" not in response and "◁" not in response and "[" not in response:
        return "", response
    response = response[:-_CONTEXT] + _END_TOKENS.sub("", response[-_CONTEXT:])
    closings = collections.deque(_CLOSED.finditer(response), maxlen=1)
    start, end = closings[0].span() if closings else (0, 0)
    return response[:start], None if _OPENED.search(response, end) else response[end:]


def _last_box(text: str) -> tuple[str, int, int] | None:
    """Content, start and end of the last outermost closed, nonempty box."""
    first = _BOX.search(text)
    if first is None:
        return None
    opened: list[
        tuple[int, int, bool]
    ] = []  # start of a mark, start of its content, whether it is a box
    closed: list[tuple[int, int, int]] = []  # outermost boxes so far
    for mark in _BRACES.finditer(text, first.start()):
        if mark["box"] or mark[0] == "{":
            opened.append((mark.start(), mark.end(), mark["box"] is not None))
        elif mark[0] == "}" and opened:
            outer, inner, box = opened.pop()
            if box and not _BLANK.fullmatch(text, inner, mark.start()):
                while closed and closed[-1][0] > outer:
                    closed.pop()
                closed.append((outer, inner, mark.start()))
    if not closed:
        return None
    outer, inner, end = closed[-1]
    content = text[inner:end].strip()
    if _BOX.match(content):  # a box that contains only another box
        inside = _last_box(content)
        if inside and inside[1] == 0 and inside[2] == len(content):
            return inside[0], outer, end + 1
    return content, outer, end + 1


def _extract(text: str) -> str | None:
    box = _last_box(text)
    if box is None:
        return _after_phrase(text) or None
    content, start, end = box
    if _BOX_NEGATED_BEFORE.search(text[max(0, start - _CONTEXT) : start]):
        return None
    if _BOX_NEGATED_AFTER.match(text[end : end + _CONTEXT]):
        return None
    return bare(content) or None


def _after_phrase(text: str) -> str | None:
    phrases = list(_PHRASE.finditer(text))
    if not phrases:
        return None
    phrase = phrases[-1]
    if _NEGATED_BEFORE.search(text[max(0, phrase.start() - _CONTEXT) : phrase.start()]):
        return None
    tail = text[phrase.end() :].lstrip(_LEAD)
    if _NEGATED_AFTER.match(tail):
        return None
    if lead := _LEAD_WORDS.match(tail):
        tail = tail[lead.end() :]
    if "####" in phrase[0] and _PRICE.match(tail):
        return tail.strip()
    for opening, closing in _DELIMITERS:
        if tail.startswith(opening):
            content, closed, rest = tail[len(opening) :].partition(closing)
            answer = content.strip() if closed else ""
            if rest.startswith(".") and _CORRECTION.match(rest, 1):
                return None
            if not _ALTERNATIVE.match(rest):
                break
    else:
        line = tail.partition("\n")[0]
        end = _SENTENCE_END.search(line)
        if end is not None and end[0] == "?":
            return None
        if end is not None and _CORRECTION.match(line, end.end()):
            return None
        answer = bare((line[: end.start()] if end else line).strip("*_ \t"))
    return None if re.search(r"\\f?box(?:ed)?\b", answer) else answer
