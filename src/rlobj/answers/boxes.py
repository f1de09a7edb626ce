"""Find the boxes of a response, and read the boxes of its last sentence that has one.

boxes joined by blanks, punctuation or a connective    one answer, a list
boxes joined by an equals sign or "that is"            one answer, a chain of equal values
boxes that hold the same text                          that answer
anything else between boxes of one sentence            no answer
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from rlobj.answers.normalization import normalize
from rlobj.answers.sentences import plain, sentence_end
from rlobj.answers.vocabulary import LISTS

_COMMAND = r"\\(?:[Bb]oxed|fbox|framebox)(?![A-Za-z])"
BOX = re.compile(_COMMAND)
_MARK = re.compile(
    rf"(?P<box>{_COMMAND})\s*(?P<brace>\{{)?|\\[^\\]|\\\\(?!{_COMMAND[2:]})|[{{}}]", re.DOTALL
)
_BLANK = re.compile(r"(?:[\s~{}$]|\\[,;:! ]|\\q?quad\b|\\(?:text|mbox)\s*(?=\{))*")
_UNBRACED = re.compile(r"[\s~]*(?:\\(?P<command>[a-zA-Z]+)|[A-Za-z0-9])")
_NAME = r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?'*(?:\(\w+\))?"
_LABEL = re.compile(rf"(?<![A-Za-z\\])({_NAME})\s*=\s*\Z")
_CONNECTIVE = (
    r"(?:(?:and(?:/or)?|or|as well as|both|either)(?: (?:maybe|perhaps|possibly|else|also|even))?"
    r"|\\l?or|\\land|\\vee|\\wedge)(?![a-z])"
)
_JOINED = re.compile(
    r"(?:[\s,;:/|&.…·(){}-]|\n[ \t]*(?:[0-9]{1,2}[.)]|\([a-z0-9]{1,2}\))(?=\s)"
    rf"|({_CONNECTIVE})|(?:{_NAME}\s*=(?=\s*\Z)))*",
    re.IGNORECASE,
)
_EQUAL = re.compile(LISTS["extraction"]["equal"], re.IGNORECASE)
"""What may stand between boxes that hold equal values."""


class Box(NamedTuple):
    """A closed, nonempty, outermost box, from `start` to `end` of the text."""

    start: int
    end: int
    content: str


def find_boxes(text: str) -> list[Box]:
    r"""Return the boxes in order; takes linear time.

    Example:
        >>> [box.content for box in find_boxes(r"\boxed{5}, \boxed{}, \boxed\frac12, \boxed{6")]
        ['5', '\\frac12']
    """
    first = BOX.search(text)
    if first is None:
        return []
    opened: list[tuple[int, int, bool]] = []  # start, start of the content, whether it is a box
    closed: list[tuple[int, int, int]] = []  # outermost boxes: start, and span of the content
    groups: dict[int, int] = {}  # opening brace -> its closing brace
    bare: list[tuple[int, int]] = []  # boxes without braces
    for mark in _MARK.finditer(text, first.start()):
        if mark["brace"] or mark[0] == "{":
            opened.append((mark.start(), mark.end(), mark["box"] is not None))
        elif mark["box"]:
            bare.append((mark.start(), mark.end("box")))
        elif mark[0] == "}" and opened:
            start, inner, is_box = opened.pop()
            groups[inner - 1] = mark.start()
            if is_box and not _BLANK.fullmatch(text, inner, mark.start()):
                while closed and closed[-1][0] > start:
                    closed.pop()
                closed.append((start, inner, mark.start()))
    boxes = [Box(start, end + 1, _inside(text[inner:end].strip())) for start, inner, end in closed]
    for start, inner in bare:
        end = _end_of_argument(text, inner, groups)
        if end is not None:
            boxes.append(Box(start, end, text[inner:end].strip(" \t\n~")))
    return _outermost(sorted(boxes)) if bare else boxes


def _inside(content: str) -> str:
    """Remove the box from a content that is nothing but another box."""
    if BOX.match(content):
        inner = find_boxes(content)
        if len(inner) == 1 and inner[0][:2] == (0, len(content)):
            return inner[0].content
    return content


def _end_of_argument(text: str, start: int, groups: dict[int, int]) -> int | None:
    r"""End of the argument of a box without braces: a digit, a letter, \frac12, \sqrt{2}."""
    argument = _UNBRACED.match(text, start)
    if argument is None:
        return None
    end = argument.end()
    for _ in range(2 if argument["command"] and "frac" in argument["command"] else 1):
        if not argument["command"]:
            break
        while text[end : end + 1] == " ":
            end += 1
        if text[end : end + 1] == "{":
            if end not in groups:
                return None
            end = groups[end] + 1
        elif text[end : end + 1].isalnum():
            end += 1
    return end


def _outermost(boxes: list[Box]) -> list[Box]:
    kept: list[Box] = []
    for box in boxes:
        if not kept or box.start >= kept[-1].end:
            kept.append(box)
    return kept


def last_sentence(text: str, boxes: list[Box]) -> list[Box]:
    """Return the boxes of the last sentence that has a box."""
    first = len(boxes) - 1
    while first > 0 and not _separated(text[boxes[first - 1].end : boxes[first].start]):
        first -= 1
    return boxes[first:]


def _separated(between: str) -> bool:
    joined = _JOINED.fullmatch(plain(between))
    if joined and joined[1]:  # "5. Or 6."
        return False
    return sentence_end(between, joined=bool(joined)) is not None


def read_boxes(text: str, boxes: list[Box]) -> str | None:
    r"""Return the answer in the boxes of one sentence, by the rule of this module.

    Example:
        >>> text = r"Either \boxed{5} or \boxed{6}; \boxed{7}"
        >>> read_boxes(text, find_boxes(text))
        '5, 6, 7'
        >>> text = r"\boxed{5}, no, \boxed{6}"
        >>> read_boxes(text, find_boxes(text)) is None
        True
    """
    contents = [box.content for box in boxes]
    if len({normalize(content).replace(" ", "") for content in contents}) == 1:
        return contents[-1]
    between = [plain(text[left.end : right.start]) for left, right in itertools.pairwise(boxes)]
    if all(map(_JOINED.fullmatch, between)):
        labels = [_LABEL.search(part) for part in (plain(text[: boxes[0].start][-60:]), *between)]
        parts = [
            f"{label[1]}={part}" if label else part
            for label, part in zip(labels, contents, strict=True)
        ]
        answer = ", ".join(parts)
        before, after = plain(text[: boxes[0].start][-20:]), plain(text[boxes[-1].end :][:20])
        bracketed = before.rstrip().endswith("(") and after.lstrip().startswith(")")
        return f"({answer})" if bracketed else answer
    links = [_EQUAL.fullmatch(part) for part in between]
    if not all(links):
        return None
    return contents[0] + "".join(
        (r" \approx " if link and link["about"] else " = ") + part
        for link, part in zip(links, contents[1:], strict=True)
    )


def last_box(text: str) -> str | None:
    """Return the content of the last closed, nonempty box, or None; takes linear time."""
    boxes = find_boxes(text)
    return boxes[-1].content if boxes else None
