r"""Derivatives: reading dy/dt, and its notations y' and dy/dt; the lexer reads \dot y as y'."""

from __future__ import annotations

import re

from rlobj.answers.expressions import names
from rlobj.answers.lexer import Token, closing_bracket, join_text
from rlobj.answers.structures import Structure, rename

_QUOTIENT = re.compile(r"d:[d∂](?:\^([0-9]))?(.+)/[d∂](.+?)(?:\^[0-9])?")


def derivative(tokens: list[Token], start: int) -> tuple[str, int] | None:
    """Return a name for the derivative dM/dt or d^2 x/dt^2, and the position after it."""
    position, parts = start, []
    for _ in range(2):
        if [token[:2] for token in tokens[position : position + 1]] != [("symbol", "{")]:
            return None
        end = closing_bracket(tokens, position)
        parts.append(tokens[position + 1 : end])
        position = end + 1
    above, below = parts
    for part in parts:
        if not part or (part[0].text[0] not in "d∂" and part[0].text != "partial"):
            return None
        operators = any(token.text in ("+", "-", "*", "/", "(", "!", "frac") for token in part)
        if operators or part[0].kind not in ("name", "word"):
            return None
    if (len(below) == 1 and len(below[0].text) == 1) or below[0].kind == "number":
        return None
    return f"d:{join_text(above)}/{join_text(below)}".replace(" ", ""), position


def in_notation_of(answer: Structure, gold: Structure) -> Structure:
    """Return an answer with its derivatives written as in the gold.

    dy/dt is y' and dot y, but never dy/dx.
    """
    answer_names = _all_names(answer)
    if not any(map(_derivative, answer_names)):
        return answer
    gold_names = _all_names(gold)
    new: dict[str, str] = {}
    for name in answer_names - gold_names:
        if (derivative := _derivative(name)) is None:
            continue
        base, order, variable = derivative
        for other in gold_names - answer_names:
            match _derivative(other):
                case (b, o, v) if (b, o) == (base, order) and None in (v, variable):
                    new[name] = other
    return rename(answer, new) if new else answer


def _derivative(name: str) -> tuple[str, int, str | None] | None:
    """Return the function, the order and the variable (None if it is not written)."""
    if quotient := _QUOTIENT.fullmatch(name):
        return quotient[2], int(quotient[1] or 1), quotient[3]
    bare = name.replace("'", "")
    return (bare, len(name) - len(bare), None) if bare != name else None


def _all_names(structure: Structure) -> frozenset[str]:
    """Return the names in a structure, also those of values and of both sides of equations."""
    all_names = frozenset[str]()
    waiting: list[object] = [structure]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Structure):
            waiting += vars(value).values()
        elif isinstance(value, tuple) and value:
            if isinstance(value[0], str):
                all_names |= names(value)
            else:
                waiting += value
    return all_names
