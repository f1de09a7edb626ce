"""Decide what an answer counts as that could not be read or evaluated.

Mathematics that is beyond the parser or a limit is undecided. Everything else is not an answer and
wrong: prose, garbage, code, brackets that do not match. Text is mathematics if it consists of
numbers, names, known operators and commands, and if every operator has its operands.
"""

from __future__ import annotations

from rlobj.answers.lexer import Token, Unreadable, tokenise
from rlobj.answers.normalization import normalize
from rlobj.answers.vocabulary import BRACKETS, FUNCTIONS, UNSUPPORTED, word_set

NOT_AN_ANSWER = "not an answer"

_COMMANDS = (
    FUNCTIONS
    | UNSUPPORTED
    | word_set(
        """frac binom sum prod gcd lcm det deg dim ker arg sup inf Re Im tr rank sgn Pr bmod mod
        pmod oplus otimes notin subset subseteq supset supseteq complement star bullet dagger"""
    )
)
_SIGNS = frozenset("+-±∓")
_BINARY = frozenset([*"*/^_=<>≈≡∈∪∩∖:,;", "<=", ">=", "!=", "or", "and"])
_BETWEEN_CELLS = frozenset(["&", "\\\\"])
_AFTER = frozenset("!°%")
_OPERANDS = frozenset("∞…∅")
_CLOSING = frozenset(BRACKETS.values())
_MAX_LENGTH = 10_000


def unread(answer: str, reason: str) -> tuple[bool | None, str]:
    r"""Return the decision on an answer that could not be read or evaluated.

    Args:
        answer: the answer.
        reason: why not.

    Example:
        >>> unread(r"\gcd(12, 18)", "not readable: gcd")
        (None, 'not readable: gcd')
        >>> unread("5 5 + banana", "not readable: a number beside what is before it")
        (False, 'not an answer')
    """
    return (None, reason) if is_mathematics(answer) else (False, NOT_AN_ANSWER)


def is_mathematics(text: str) -> bool:
    """Return whether text has the form of mathematics."""
    if len(text) > _MAX_LENGTH:
        return False
    try:
        tokens = tokenise(normalize(text))
    except (Unreadable, RecursionError):
        return False
    return bool(tokens) and _well_formed(tokens)


def _well_formed(tokens: list[Token]) -> bool:
    brackets: list[str] = []
    operand = False  # whether the text so far ends with an operand
    before = Token("", "")
    for token in tokens:
        kind, text, _ = token
        if kind == "number" and operand and before.text not in ("}", "]"):
            return False
        if kind in ("text", "word") and len(text) > 3:
            return False
        if kind == "command" and text not in _COMMANDS:
            return False
        if kind in ("begin", "end"):
            brackets = [*brackets, text] if kind == "begin" else brackets[:-1]
            operand = kind == "end"
        elif kind != "symbol":
            operand = kind != "command"
        elif text in BRACKETS or (text == "|" and not operand):
            brackets.append(text)
            operand = False
        elif text in _CLOSING or text == "|":
            if not brackets or not operand or (text == "|") != (brackets[-1] == "|"):
                return False
            brackets.pop()
        elif (operand and (text in _BINARY or (text in _BETWEEN_CELLS and brackets))) or (
            text in ("_", "^") and before.kind == "command"
        ):
            operand = False
        elif text in _SIGNS:
            if before.text in _SIGNS:
                return False
            operand = False
        elif text == "'" and before.kind == "name":
            operand = True
        elif not (text in _OPERANDS or (text in _AFTER and operand)):
            return False
        else:
            operand = True
        before = token
    return operand and not brackets
