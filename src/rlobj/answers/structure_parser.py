"""Tokens -> structure: lists, relations, sets, brackets, conditions and layouts.

The answer of an equation is its right side if its left side contains names: m + n = 33. It is an
equation to solve, and no value, if its right side is 0 and its left side is more than a name, or if
its left side is a sum of numbers and one name: x + 1 = 5.
"""

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from rlobj.answers import lexer, words
from rlobj.answers.comparison import as_region
from rlobj.answers.expressions import Tree, expand_plus_minus, linear, names, parse_expression
from rlobj.answers.lexer import Token, Tokens, Unreadable, Unsupported
from rlobj.answers.structures import (
    INFINITY,
    MINUS_INFINITY,
    REALS,
    Chain,
    Interval,
    Items,
    Matrix,
    Named,
    Region,
    Relation,
    Rounded,
    Scalar,
    Structure,
    Tuple,
    Unit,
    Words,
    is_infinite,
    names_in,
    scalar,
    tree_of,
    without_name,
)
from rlobj.answers.vocabulary import BRACKETS, CONSTANTS, LISTS, SCALES, word_set

_CLAUSE = re.compile(
    r"[\s,;(]*(?:for|where|with|when|whenever|provided|since|because)\b", re.IGNORECASE
)
_WORDS = word_set(LISTS["condition"])
_BOUNDS = frozenset(("<", ">", "<=", ">=", "!=", "∈", "∉"))
_SEPARATORS = frozenset((",", ";", "and"))
_LAYOUTS = word_set(LISTS["layouts"])


def _without_condition(tokens: Tokens) -> Tokens:
    """Remove a condition such as "for n > 2" or "(k in Z)" from the end."""
    depth = 0
    for n, token in enumerate(tokens):
        depth += lexer.nesting(token)
        begins = depth == 0 and n and token.kind in ("text", "word") and _CLAUSE.match(token.text)
        if begins and _is_condition(tokens[n:]):
            return _stripped(tokens[:n])
    if tokens and tokens[-1][:2] == ("symbol", ")"):
        closed = (n for n, t in enumerate(tokens) if t.text == "(" and lexer.is_enclosed(tokens, n))
        opening = next(closed, 0)
        inside = tokens[opening + 1 : -1]
        bounded = opening and any(token.text in _BOUNDS for token in inside)
        if bounded and _is_condition(inside):
            return _stripped(tokens[:opening])
    return tokens


def _stripped(tokens: Tokens) -> Tokens:
    while tokens and tokens[-1].text in (",", ";"):
        tokens = tokens[:-1]
    return tokens


def _is_condition(tokens: Tokens) -> bool:
    """Return whether each part is a bound on a name, a membership, or words for what a name is."""
    pieces = [piece for piece in lexer.split(tokens, _SEPARATORS)[0] if piece]
    return bool(pieces) and all(map(_is_clause, pieces))


def _is_clause(tokens: Tokens) -> bool:
    """Return whether this is one part of a condition."""
    said, rest = [], []
    for token in tokens:
        if token.kind in ("text", "word"):
            said += re.findall(r"[A-Za-z-]+", token.text.lower())
        else:
            rest.append(token)
    if not _WORDS.issuperset(said) or any(token.kind in ("begin", "end") for token in rest):
        return False
    names = {token.text for token in rest if token.kind == "name"} - {"mathbb:Z", "mathbb:N"}
    if any(token.text in ("=", "≈", "≡", "or", "±") for token in rest):
        return False
    if any(token.kind == "symbol" and token.text in _BOUNDS for token in rest):
        return bool(names)
    return len(rest) <= 2 and len(names) == len(rest) and bool(names or said)


def _without_layout(tokens: Tokens) -> Tokens | None:
    r"""Return the rows of `aligned` and similar environments as a list, a = 1, b = 2.

    Rows that start with an equals sign continue the row before. None if the tokens are no such
    environment, or its columns mean something (piecewise functions, matrices).
    """
    kinds = [token.kind for token in tokens]
    if tokens[0].text == "\\{" and kinds[1:2] == ["begin"] and kinds[-1] == "end":
        tokens = tokens[1:]
    if tokens[0].kind != "begin" or not lexer.is_enclosed(tokens):
        return None
    kind, inside = tokens[0].text, tokens[1:-1]
    related = any(token.kind == "symbol" and token.text in ("=", *_BOUNDS) for token in inside)
    plain = len(inside) > 0 and not any(token.text in ("&", "\\\\") for token in inside)
    if kind not in _LAYOUTS and not (kind == "array" and (related or plain)):
        return None
    flat: Tokens = []
    for n, token in enumerate(inside):
        around = {neighbour.text for neighbour in inside[max(0, n - 1) : n + 2]}
        if token[:2] == ("symbol", "&"):
            if kind not in ("align", "aligned", "split") and not around & {"=", *_BOUNDS}:
                return None
        elif token[:2] == ("symbol", "\\\\"):
            after = [neighbour.text for neighbour in inside[n + 1 : n + 3] if neighbour.text != "&"]
            if after[:1] != ["="]:
                flat.append(Token("symbol", ",", True))
        else:
            flat.append(token)
    return flat


_RELATIONS = frozenset(["=", "<", ">", "<=", ">=", "!=", "≈", "≡", "∈", "∉"])
_EQUAL = frozenset("=≡≈")
_FLIPPED = {">": "<", ">=": "<="}
_FIGURE = re.compile(
    r"(?:[A-Z](?:_[0-9])?){2,4}|m?(?:angle|triangle)(?:[A-Z](?:_[0-9])?){1,4}|\|[A-Z]{1,2}\|"
)
"""Names of lengths, angles and areas; in a gold answer, other products are equations."""
_DOUBTFUL = re.compile(LISTS["doubtful"])
"""Words before a value that deny it, doubt it or change it."""
_OPERATORS = frozenset(("int", "iint", "iiint", "lim", "sum", "prod"))


def _parsed_relation(sides: list[Tokens], symbols: list[str]) -> Structure:
    """Return the structure of sides with relation symbols between them.

    Args:
        sides: the tokens of each side; the first side may be empty, as in "= 5".
        symbols: the relation symbols, one fewer than sides.

    Raises:
        Unreadable: a side is missing, or the relations cannot be combined.
    """
    if not sides[0] and symbols[0] in _EQUAL:
        about = symbols[0] == "≈"
        sides, symbols = sides[1:], symbols[1:]
        if not symbols:
            return Rounded(None, _structure(sides[0])) if about else _structure(sides[0])
    if not all(sides):
        raise Unreadable("a relation without a side")
    if _DOUBTFUL.search(" ".join(token.text for token in sides[0]).lower()):
        raise Unreadable("a denied or supposed relation")
    if symbols in (["∈"], ["∉"]):
        region = _structure(sides[1])
        if symbols == ["∉"]:
            region = Region("∖", (REALS, region))
        elif isinstance(region, Items) and len(region.items) == 1:
            region = region.items[0]
        return Named(lexer.join_text(sides[0]), region)
    if set(symbols) <= _EQUAL:
        while len(sides[0]) > 1 and sides[0][0].kind == "text":  # the line y = 2x
            sides[0] = sides[0][1:]
        return _equation(sides, symbols)
    if set(symbols) & (_EQUAL | {"∈", "∉"}):
        raise Unreadable("mixed relations")
    return _inequality([parse_expression(side) for side in sides], symbols)


def _equation(sides: list[Tokens], symbols: list[str]) -> Structure:
    """Parse a chain of equals signs: the sides without names are the value, the first other side
    is its name."""
    values = [_side(side) for side in sides]
    labels = [n for n, side in enumerate(sides) if _is_label(side, values[n])]
    valued = [n for n in range(len(sides)) if n not in labels]
    if not valued:  # y = 2x + 3
        valued = list(range(1, len(sides)))
    elif any(
        tree is not None and len(names(tree)) == 1 and _has_constant(tree)  # x + 1 = 5
        for tree in (tree_of(values[n]) for n in labels)
    ):
        return _relation(values)
    if unread := [n for n in valued if values[n] is None]:
        _structure(sides[unread[0]])  # raises the error
    value = _chain([values[n] for n in valued], ["=", *symbols], valued)  # type: ignore[misc]
    if not labels:
        return value
    tree = tree_of(values[labels[0]])
    spelled = lexer.join_text(sides[labels[0]]).replace(" ", "")
    if _is_name(tree):
        return Named(_name(tree), value, tree)
    if isinstance(value, Scalar) and value.value == 0 and len(sides) == 2:
        if tree is None and re.search("[-+^]", spelled):
            raise Unreadable("an equation whose left side is not readable")
        if tree is not None and tree[0] != "mod":
            return _relation(values)
    figure = _FIGURE.fullmatch(spelled) and not names_in(value)
    return Named(spelled, value, tree, tree is not None and not figure)


def _side(tokens: Tokens) -> Structure | None:
    try:
        return _structure(tokens)
    except Unreadable:
        return None


def _is_label(tokens: Tokens, value: Structure | None) -> bool:
    """Return whether a side has names: x, m + n, f(3), the area, P(A and B)."""
    if value is None:
        return any(t.kind in ("name", "word", "text", "command") or t.text == "…" for t in tokens)
    if isinstance(value, Scalar) and value.tree is None:
        return bool(_free_letters(tokens)) or sum(token.text in _OPERATORS for token in tokens) > 1
    return isinstance(value, Words) or bool(names_in(value))


def _free_letters(tokens: Tokens) -> set[str]:
    """Letters of an integral, limit or sum, without its variable."""
    free, bound = set[str](), {"d"}
    for n, token in enumerate(tokens):
        if token.kind not in ("name", "word"):
            continue
        if token.kind == "word" or (n and tokens[n - 1].text == "d"):
            bound |= {token.text[-1]} if token.text[0] == "d" or token.kind == "name" else set()
        if n > 1 and tokens[n - 1].text == "{" and tokens[n - 2].text == "_":
            bound.add(token.text)
        free |= set(token.text) if token.kind == "word" else {token.text}
    return free - bound - set(CONSTANTS)


def _has_constant(tree: Tree) -> bool:
    """Return whether a sum has a number among its terms."""
    if isinstance(tree, Fraction):
        return True
    return tree[0] in "+-" and any(map(_has_constant, tree[1:]))


def _relation(values: Sequence[Structure | None]) -> Relation:
    trees = [tree_of(value) for value in values]
    if len(trees) != 2 or None in trees:
        raise Unreadable("a chain of equations")
    return Relation("=", *trees)


def _chain(values: list[Structure], symbols: list[str], valued: list[int]) -> Structure:
    """Equal values; the last may be rounded. `symbols` has the symbol before each side."""
    symbols = [symbols[n] for n in valued]
    if len(values) == 1:
        return Rounded(None, values[0]) if symbols[0] == "≈" else values[0]
    if "≈" in symbols[:-1]:
        raise Unreadable("a rounding inside a chain")
    if symbols[-1] == "≈":
        *exact, about = values
        return Rounded(exact[0] if len(exact) == 1 else Chain(tuple(exact)), about)
    return Chain(tuple(values))


def _inequality(trees: list[Tree], symbols: list[str]) -> Structure:
    if set(symbols) <= set(_FLIPPED):
        trees, symbols = trees[::-1], [_FLIPPED[symbol] for symbol in reversed(symbols)]
    if set(symbols) & set(_FLIPPED) or (len(trees) > 2 and "!=" in symbols) or len(trees) > 3:
        raise Unreadable("inequalities that do not go together")
    if len(trees) == 3 and _is_name(trees[1]):
        low, name, high = trees
        closed = (symbols[0] == "<=", symbols[1] == "<=")
        return Interval(scalar(low), scalar(high), closed, _name(name))
    parts = [
        _solved(left, symbol, right)
        for (left, right), symbol in zip(itertools.pairwise(trees), symbols, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    variables = {getattr(part, "variable", None) for part in parts}
    if None in variables or len(variables) > 1:
        raise Unreadable("a chain of inequalities about no name")
    return Region("∩", tuple(parts), variables.pop())


def _solved(left: Tree, symbol: str, right: Tree) -> Structure:
    """Solve an inequality that is linear in a name, or in the absolute value of such a sum."""
    for name, bound in ((left, right), (right, left)):
        if _is_name(name) and name[1] not in names(bound):
            if symbol == "!=":
                return Relation("!=", left, right) if names(bound) else _other(name, bound)
            return _half_line(bound, name is left, symbol == "<=", _name(name))
    variables = names(left) | names(right)
    if len(variables) == 1 and symbol != "!=":
        [name] = variables
        if (line := linear(("-", left, right), name)) and line[0]:
            slope, rest = line
            bound = ("/", ("neg", rest), slope)
            return _half_line(bound, slope > 0, symbol == "<=", name)
        for inside, bound in ((left, right), (right, left)):
            if names(bound) or (size := _size(inside, bound)) is None:
                continue
            (inside, bound), small = size, inside is left
            low, high = (("neg", bound), bound) if small else (bound, ("neg", bound))
            parts = [_solved(low, symbol, inside), _solved(inside, symbol, high)]
            if all(isinstance(part, Interval) for part in parts):
                return Region("∩" if small else "∪", tuple(parts), name)
    return Relation(symbol, left, right)


def _size(tree: Tree, bound: Tree) -> tuple[Tree, Tree] | None:
    """Return x and b if the tree is |x| with bound b, or x^2 with bound b^2."""
    if not isinstance(tree, tuple):
        return None
    if tree[0] == "^" and tree[2] == Fraction(2):
        return tree[1], ("root", bound, Fraction(2))
    return (tree[1], bound) if tree[0] == "abs" else None


def _half_line(bound: Tree, below: bool, closed: bool, variable: str) -> Interval:
    low, high = (MINUS_INFINITY, bound) if below else (bound, INFINITY)
    ends = (closed and not below, closed and below)
    return Interval(scalar(low), scalar(high), ends, variable)


def _other(name: Tree, value: Tree) -> Region:
    return Region("∖", (REALS, Items((scalar(value),), braces=True)), _name(name))


def _is_name(tree: Tree) -> bool:
    """Return whether a tree is one name, or a function value."""
    return isinstance(tree, tuple) and tree[0] in ("name", "apply")


def _name(tree: Tree) -> str:
    return tree[1] if tree[0] == "name" else f"{tree[1]}({tree[2:]})"


_MATRICES = word_set("matrix pmatrix bmatrix Bmatrix array smallmatrix cases dcases")


def _matrix(tokens: Tokens) -> Structure:
    """Parse a matrix.

    Raises:
        Unreadable: it is another environment, or more than that.
    """
    if tokens[0].kind != "begin" or not lexer.is_enclosed(tokens):
        raise Unreadable("an environment among other things")
    if tokens[0].text not in _MATRICES:
        raise Unreadable(f"an environment {tokens[0].text}")
    lines = lexer.split(tokens[1:-1], frozenset(("\\\\",)))[0]
    rows = [tuple(map(_structure, lexer.split(line, frozenset("&"))[0])) for line in lines if line]
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("rows of different lengths")
    return Matrix(tuple(rows))


_LISTS = (frozenset(";"), frozenset((",", "or", "and")))
_SET_OPERATORS = ("∪", "∩", "∖")
_PLAIN_COMMANDS = frozenset(("frac", "sqrt"))
_NEXT_EQUATION = re.compile(r"\\q?quad\b(?=\s*\\?[A-Za-z][^=,\\]{0,12}=)")


@functools.lru_cache(maxsize=4096)
def parse_structure(text: str, grouped: bool = True) -> Structure:
    r"""Return the structure of an answer.

    Args:
        text: LaTeX or plain mathematics, or words.
        grouped: parse 1,234 as one number.

    Raises:
        Unreadable: the text is none of these.

    Example:
        >>> parse_structure("1,234").value, parse_structure(r"x=\frac12").name
        (Fraction(1234, 1), 'x')
    """
    text = lexer.normalize(text)
    if not text:
        raise Unreadable("nothing there")
    if (special := words.parse_special(text)) is not None:
        return special
    if choice := words.parse_choice(text):
        return Named(f"choice {choice[0]}", parse_structure(choice[1], grouped))
    if "quad" in text:
        text = _NEXT_EQUATION.sub(",", text)
    if grouped:
        text = lexer.join_comma_groups(text) or text
    said = words.parse_words(text)
    if said is not None and not re.search("[0-9]", text):
        return said
    try:
        structure = _structure(lexer.tokenise(text))
    except Unreadable:
        if said is None:
            raise
        return said
    return structure if said is None or isinstance(structure, Scalar) else said


def _structure(tokens: Tokens) -> Structure:
    """Parse the outermost level: lists, then relations, then sets and brackets, then a value."""
    while len(tokens) > 1 and tokens[0][:2] == ("symbol", "{") and lexer.is_enclosed(tokens):
        tokens = tokens[1:-1]
    if len(tokens) == 1 and tokens[0].kind in ("number", "name"):
        return _single(tokens)
    flat = _without_layout(tokens) if tokens else None
    tokens = words.strip_phrases(_without_condition(tokens if flat is None else flat))
    if len(tokens) > 1 and tokens[0].text.lower() in ("either", "both"):
        tokens = tokens[1:]
    if not tokens:
        raise Unreadable("an empty part")
    for separators in _LISTS:
        runs, signs = lexer.split(tokens, separators)
        if signs:
            return _list([run for run in runs if run], set(signs))
    sides, symbols = lexer.split(tokens, _RELATIONS)
    return _parsed_relation(sides, symbols) if symbols else _single(tokens)


def _list(runs: list[Tokens], separators: set[str]) -> Structure:
    if not runs:
        raise Unreadable("nothing between separators")
    while len(runs) > 1 and "or" not in separators and _ends_in_condition(runs):
        runs.pop()
    parts = [_structure(run) for run in runs]
    if len(parts) == 1:
        return parts[0]
    values = {part.value if isinstance(part, Scalar) else None for part in parts}
    if "or" in separators and len(values) == 1 and len(set(parts)) > 1 and None not in values:
        return parts[0]  # 0.75 or 3/4
    if (region := _joined(parts, separators)) is not None:
        return region
    name = parts[0]
    if isinstance(name, Named) and not any(isinstance(part, Named) for part in parts[1:]):
        parts = [name, *(Named(name.name, part, name.tree) for part in parts[1:])]  # x = 1, 2
    return Items(tuple(parts), alternatives="or" in separators)


def _ends_in_condition(runs: list[Tokens]) -> bool:
    """Return whether the last part is a condition on the first: 2^n, n > 0."""
    first, last = runs[0], runs[-1]
    related = any(token.text in _RELATIONS or token.kind in ("text", "word") for token in last)
    if not related or not _is_condition(last) or _is_condition(first):
        return False
    if any(token.text == "!=" for token in last) and last[-1].text == first[-1].text:
        return False  # 5, x != 5
    about = {token.text for token in last if token.kind == "name"}
    return not (len(first) > 1 and first[1].text == "=" and first[0].text in about)


def _joined(parts: list[Structure], separators: set[str]) -> Region | None:
    """Join inequalities: "or" gives a union, a comma or "and" an intersection.

    A value with a name is a point of a union: a < 0 or a = 1.
    """
    variables = {getattr(part, "name", getattr(part, "variable", None)) for part in parts}
    regions = [as_region(without_name(part)) for part in parts]
    of_sets = any(isinstance(without_name(part), (Interval, Region)) for part in parts)
    if not of_sets or len(variables) > 1:
        return None
    [variable] = variables
    if "or" in separators:
        points = [
            region or (without_name(part) if isinstance(without_name(part), Scalar) else None)
            for part, region in zip(parts, regions, strict=True)
        ]
        kept = tuple(point for point in points if point is not None)
        return Region("or", kept, variable) if len(kept) == len(parts) else None
    if variable is None or None in regions:
        return None
    return Region("∩", tuple(region for region in regions if region), variable)


def _combined(tokens: Tokens) -> Structure | None:
    """Parse unions, intersections and differences of sets; None if there is no operator."""
    for n, token in enumerate(tokens[1:-1], 1):
        if token.text == "-" and (tokens[n + 1].text == "\\{" or (n == 1 and _is_reals(tokens[0]))):
            tokens = [*tokens[:n], Token("symbol", "∖"), *tokens[n + 1 :]]
    for operator in _SET_OPERATORS:
        runs, operators = lexer.split(tokens, frozenset(operator))
        if not operators:
            continue
        if operator == "∖" and lexer.join_text(runs[0]) == "R":  # a bold R
            runs[0] = [Token("name", "mathbb:R")]
        parts = [_structure(run) for run in runs]
        if operator == "∪" and all(isinstance(part, Items) and part.braces for part in parts):
            members = [item for part in parts if isinstance(part, Items) for item in part.items]
            return Items(tuple(dict.fromkeys(members)), braces=True)
        regions = [as_region(without_name(part)) for part in parts]
        kept = tuple(region for region in regions if region is not None)
        if len(kept) < len(parts):
            raise Unreadable("an operation on other things than sets of numbers")
        return Region(operator, kept)
    return None


def _single(tokens: Tokens) -> Structure:
    """Parse one value or one pair of brackets."""
    if tokens[-1].kind == "end":
        return _matrix(tokens)
    if tokens[0][:2] == ("symbol", "∅") and len(tokens) == 1:
        return Items((), braces=True)
    enclosed = tokens[0].text in BRACKETS and lexer.is_enclosed(tokens)
    if enclosed and (bracketed := _bracketed(tokens)) is not None:
        return bracketed
    if (combined := _combined(tokens)) is not None:
        return combined
    runs, ratio = lexer.split([_colon(token) for token in tokens], frozenset(":"))
    kinds = [token.kind for token in runs[0]]
    if kinds == ["name"] and ratio and [token.text for token in runs[1][:1]] == ["("]:
        return Named(runs[0][0].text, _structure(runs[1]))  # A: (1, 2)
    if ratio and all(runs):
        return Tuple(tuple(map(_structure, runs)), ":")
    if len(tokens) == 1 and _is_reals(tokens[0]):
        return REALS
    text = lexer.join_text(tokens)
    digits = "_" in (token.text for token in tokens[1:4]) and text[:1].isdecimal()
    if digits and (based := words.parse_based_numeral(text)) is not None:
        return based
    return _scalar(tokens)


def _is_reals(token: Token) -> bool:
    return token.text == "mathbb:R" or token[:2] == ("command", "R")


def _colon(token: Token) -> Token:
    """A ratio may be written with a word: 7 to 32."""
    to = token.kind in ("text", "word") and token.text == "to"
    return Token("symbol", ":", token.spaced) if to else token


def _set(members: Structure) -> Items:
    if isinstance(members, Items) and not members.braces:
        return replace(members, braces=True)
    return Items((without_name(members),), braces=True)


def _bracketed(tokens: Tokens) -> Structure | None:
    """Parse a set, tuple, interval or matrix in brackets; None for plain parentheses."""
    brackets, inside = tokens[0].text + tokens[-1].text, tokens[1:-1]
    if brackets == "\\{\\}":
        if not inside:
            return Items((), braces=True)
        bar = next((n for n, token in enumerate(inside) if token.text in (":", "|")), 0)
        if bar and (bar == 1 or inside[1].text == "∈"):  # {x : ...}: the condition matters
            within = lexer.join_text(inside[2:bar])
            members = _structure(inside[bar + 1 :])
            if within not in ("", "mathbb:R"):
                return Tuple((members,), f"∈ {within}")
            return _set(members) if isinstance(without_name(members), (Scalar, Items)) else members
        return _set(_structure(inside))
    if brackets not in ("()", "[]", "(]", "[)", "⟨⟩") or not inside:
        return None
    if inside[0].kind == "begin" and lexer.is_enclosed(inside):
        return _matrix(inside)
    separator = ";" if ";" in lexer.join_text(inside) else ","
    runs, separators = lexer.split(inside, frozenset(separator))
    if not separators:
        if lexer.split(inside, _RELATIONS)[1] or lexer.split(inside, frozenset(_SET_OPERATORS))[1]:
            return _structure(inside)
        return Tuple((_structure(inside),), "[]") if brackets == "[]" else None
    parts = tuple(_structure(run) for run in runs)
    infinite = any(map(is_infinite, parts))
    if len(parts) == 2 and (infinite or brackets in ("[]", "(]", "[)")):
        return Interval(*parts, (brackets[0] == "[", brackets[1] == "]"))
    return Tuple(parts)


def _scalar(tokens: Tokens) -> Structure:
    """Parse a value with its unit, or prose."""
    if tokens[0].text.lower() in ("approximately", "about", "roughly") and len(tokens) > 1:
        return Rounded(None, _structure(tokens[1:]))
    value, unit = words.split_unit(tokens)
    factor = Fraction(1)
    while len(value) > 1 and (multiple := SCALES.get(value[-1].text.lower())):
        factor *= multiple
        value = value[:-1]
    if any(map(words.is_prose, value)):
        return Words(words.normalize_words(" ".join(token.text for token in tokens)))
    source = lexer.latex(value)
    try:
        tree, unit = _measured(value) if unit is None else (parse_expression(value), unit)
    except Unsupported:
        return Scalar(None, None, source, unit)
    if factor != 1:
        tree = ("*", tree, factor)
    decimal = any(t.kind == "number" and not t.text.isdecimal() for t in value) and not names(tree)
    both = any(token.text in ("±", "∓") for token in value)
    trees = expand_plus_minus(tree) if both else [tree]
    if len(trees) > 1:
        return Items(tuple(scalar(signed, "", unit, decimal=decimal) for signed in trees))
    return scalar(tree, source, unit, decimal=decimal)


def _measured(tokens: Tokens) -> tuple[Tree, Unit | None]:
    """Parse a value; a final % or degree sign belongs to all of it: 62 1/2 %, 270/7 degrees."""
    mark = tokens[-1].text
    plain = not any(
        (token.kind == "command" and token.text not in _PLAIN_COMMANDS)
        or (n and token.kind == "symbol" and token.text in "+-±∓")
        for n, token in enumerate(tokens)
    )
    if len(tokens) > 1 and mark in ("%", "°") and plain:
        tree = parse_expression(tokens[:-1])
        if mark == "%":
            return ("/", tree, Fraction(100)), words.PERCENT
        return tree, frozenset({("°", 1)})
    return parse_expression(tokens), None
