r"""Extract the final answer of a response. The rule:

1. If the last thinking tag (`<think>` and similar tags) is not closed, there is no answer. Text
   after the end of the model's turn is not part of the response.
2. The answer is in the last sentence that has a closed, nonempty `\boxed{...}` or `\fbox{...}`; of
   nested boxes, the outer one. Boxes of one sentence are one answer if they hold the same text; a
   list if blanks, punctuation or a connective stand between them; a chain of equal values if an
   equals sign or "that is" does; and else no answer.
3. Without a box, the answer is the text after the last of these phrases, up to the end of the
   sentence: `answer is`, `answer:`, `answer =`, a `Final Answer` heading, or `####` on the last
   line. "The largest $n$ is 34" gives 34.
4. The sentence of the answer must assert it, and neither ask, deny, suppose nor doubt it: "It is
   not 5", "Suppose it is 5", "5?", "5, but that is wrong". Later sentences change nothing: the last
   answer counts, so a policy gains nothing by taking it back.
5. If the thinking tag is closed, the text after it is read first. The text inside is read only if
   the text after it has neither a box nor a phrase.

A number in prose is never an answer. Every function takes linear time.
"""

import collections
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from rlobj.answers.assertions import asserted, plain, sentence_end
from rlobj.answers.lexer import DELIMITERS, normalize, without_delimiters
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


_PATTERNS = {
    name: re.compile(pattern, re.IGNORECASE) for name, pattern in LISTS["extraction"].items()
}
_OPENED, _CLOSED, _END_OF_TURN = (
    re.compile(LISTS["markers"][name]) for name in ("opened", "closed", "end_of_turn")
)
_KEYS = ("answer", "####", "<answer>")
"""Every phrase starts with one of these, in small letters."""
_HEADING_BEFORE = re.compile(r"^[#*_> \t]*(?:the )?(?:final )?\Z", re.IGNORECASE | re.MULTILINE)
_HEADING = re.compile(r"answer[*_ \t]*$", re.IGNORECASE | re.MULTILINE)
_ALTERNATIVE = re.compile(
    r"[0-9A-Za-z]|\s*(?:\$|\\\()"
    r"|\s*(?:[,;]|(?:[,;]\s*)?(?:or|and)\b)\s*(?:maybe |perhaps |possibly )?(?:\$|\\\(|[-0-9])"
)
_PRICE = re.compile(r"\$ ?[0-9][0-9,]*(?:\.[0-9]{2}(?![0-9])|,[0-9]{3}|\.?(?=\s+\S)|\.\s*$)")
_LEAD = re.compile(r"[ \t\r\n:=*_}]*")


def extract_answer(response: str) -> str | None:
    """Return the final answer of a response by the rule of this module, or None.

    Example:
        >>> extract_answer(r"Maybe \\boxed{3}. No: it is \\boxed{\\frac{1}{2}}.")
        '\\\\frac{1}{2}'
        >>> extract_answer("So the final answer is $12$.")
        '12'
        >>> extract_answer(r"It is \\boxed{5}, but that is wrong.") is None
        True
    """
    if turn := _END_OF_TURN.search(response):
        response = _until(_END_OF_TURN, response, find_boxes(response), turn.start())
    thinking, final = _split_thinking(response)
    if final is None:
        return None
    if thinking and not (BOX.search(final) or next(_phrases(final), None)):
        final = f"{thinking}\n\n{final}"
    boxes = find_boxes(final)
    final = _until(_PATTERNS["next_turn"], final, boxes)
    boxes = [box for box in boxes if box.end <= len(final)]
    if not boxes:
        return _phrase_answer(final)
    boxes = last_sentence(final, boxes)
    answer = read_boxes(final, boxes)
    if answer is None or not asserted(final[: boxes[0].start], answer, final[boxes[-1].end :]):
        return None
    return bare(answer) or None


def bare(text: str) -> str:
    """Remove surrounding blanks, bold marks, math delimiters and a final full stop."""
    text = text.strip()
    if len(text) > 4 and text.startswith("**") and text.endswith("**"):
        text = text.strip("*").strip()
    return without_delimiters(text.removesuffix(".").rstrip()).strip()


def _until(end: re.Pattern[str], text: str, boxes: list[Box], start: int = 0) -> str:
    """Return the text up to the first match of `end` that follows a box or a phrase."""
    ends = [boxes[0].end] if boxes else [phrase.end() for phrase in _phrases(text)][-1:]
    after = end.search(text, max(start, *ends)) if ends else None
    return text[: after.start()] if after else text


def _phrases(text: str) -> Iterator[re.Match[str]]:
    """Yield the phrases from the last to the first."""
    lowered = text.lower()
    keys = [key for key in _KEYS if key in lowered]
    if len(lowered) != len(text) or not keys:
        lowered = text
    starts = (mention.start() for key in keys for mention in re.finditer(key, lowered))
    for start in sorted(starts, reverse=True):
        before = text[start - 1 : start]
        spaced = (
            not before.strip()
            if text[start] == "#"
            else not before.isascii() or not before.islower()
        )
        if spaced and (phrase := _PATTERNS["phrase"].match(text, start)):
            yield phrase
        elif (heading := _HEADING.match(text, start)) and _HEADING_BEFORE.search(
            text, max(0, start - 40), start
        ):
            yield heading


def _split_thinking(response: str) -> tuple[str, str | None]:
    """Return the text up to the end of thinking, and the rest; None if thinking is not closed."""
    if "<" not in response and "◁" not in response and "[" not in response:
        return "", response
    closings = collections.deque(_CLOSED.finditer(response), maxlen=1)
    start, end = closings[0].span() if closings else (0, 0)
    return response[:start], None if _OPENED.search(response, end) else response[end:]


def _phrase_answer(text: str) -> str | None:
    """Return the answer after the last phrase that gives one, if its sentence asserts it."""
    for phrase in _phrases(text):
        start = _LEAD.match(text, phrase.end()).end()  # type: ignore[union-attr]
        if not _PATTERNS["comment"].match(text, start):  # "The answer is unique."
            break
    else:
        return None
    if lead := _PATTERNS["lead_words"].match(text, start):
        start = lead.end()
    answer, start, end = _sentence_answer(text, start, price="####" in phrase[0])
    bad = not answer or re.search(r"\\f?box(?:ed)?\b", answer)
    return None if bad or not asserted(text[:start], answer, text[end:]) else answer


def _sentence_answer(text: str, start: int, price: bool) -> tuple[str, int, int]:
    """Return the answer in the sentence that starts here, and its place in the text."""
    for opening, closing in DELIMITERS:
        if text.startswith(opening, start):
            close = text.find(closing, start + len(opening))
            if close < 0 and (price or _PRICE.match(text, start)):
                break
            if close < 0:
                return "", start, len(text)
            end = close + len(closing)
            if not _ALTERNATIVE.match(text, end):
                return text[start + len(opening) : close].strip(), start, end
            break
    stop = sentence_end(text, start)
    end = stop.start() if stop else len(text)
    line = text.find("\n", start, end)
    end = line if line >= 0 else end
    if clause := _PATTERNS["clause"].search(text, start, end):
        end = clause.start()
    for copula in _PATTERNS["copula"].finditer(text, start, end):
        if (
            text.count("$", start, copula.start()) % 2 == 0
            and text[start : copula.start()].strip()[:1].isalpha()
        ):
            start = copula.end()
    return bare(text[start:end].strip("*_ \t")), start, end
