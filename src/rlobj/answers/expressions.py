"""Expressions as trees of tuples, their exact rational values, and their parser.

A tree is a `Fraction`, or a tuple whose first item is its kind:

    ("name", "x_1")   ("const", "pi")   (operator, left, right)   (function, argument, ...)
    ("sum", variable, low, high, term)  ("prod", variable, low, high, factor)

Operators are + - * / ^ and ±, ∓ (with two operands); "neg" and "!" take one. An unknown function
at an argument, f(x), is ("apply", "f", x). Names keep their case, subscripts, primes and accents.
"""

import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from rlobj.answers.lexer import Token, Unreadable, Unsupported, closing_bracket, join_text
from rlobj.answers.vocabulary import CONSTANTS, FUNCTIONS, GREEK, UNSUPPORTED

Tree = Any


def names(tree: Tree) -> frozenset[str]:
    """Return the names in a tree, including unknown functions."""
    if isinstance(tree, Fraction):
        return frozenset()
    here = frozenset[str]()
    if tree[0] in ("name", "apply"):
        here = frozenset((tree[1],))
    for part in tree[1:]:
        if not isinstance(part, str):
            here |= names(part)
    return here - {tree[1][1]} if tree[0] in ("sum", "prod") else here


def parts_of(tree: Tree) -> Iterator[tuple[Any, ...]]:
    """Yield the operators and functions in a tree with their operands, the outermost first."""
    if isinstance(tree, tuple):
        yield tree
        for part in tree[1:]:
            yield from parts_of(part)


def renamed(tree: Tree, new: dict[str, str]) -> Tree:
    """Return a tree with other names."""
    if not isinstance(tree, tuple):
        return tree
    if tree[0] in ("name", "apply"):
        tree = (tree[0], new.get(tree[1], tree[1]), *tree[2:])
    return (tree[0], *(renamed(part, new) for part in tree[1:]))


def expand_plus_minus(tree: Tree) -> list[Tree]:
    """Return one tree for each choice of sign; all ± and ∓ of a tree change together."""
    trees = [_signed(tree, {"±": up, "∓": down}) for up, down in ("+-", "-+")]
    return trees if trees[0] != trees[1] else [tree]


def _signed(tree: Tree, signs: dict[str, str]) -> Tree:
    if not isinstance(tree, tuple):
        return tree
    return (signs.get(tree[0], tree[0]), *(_signed(part, signs) for part in tree[1:]))


_MAX_DIGITS = 4000
_MAX_SCALE = 4000


def number(text: str) -> Fraction:
    """Parse a numeral: digits, a decimal, e-notation, or 0.1(6) for a repeating decimal.

    Raises:
        Unreadable: it has too many digits or too large an exponent.
    """
    if len(text) > _MAX_DIGITS:
        raise Unreadable("a number too long")
    if "(" in text:
        head, _, cycle = text.rstrip(")").partition("(")
        decimals = len(head.partition(".")[2])
        return number(head) + Fraction(int(cycle), (10 ** len(cycle) - 1) * 10**decimals)
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and (len(exponent) > 5 or abs(int(exponent)) > _MAX_SCALE):
        raise Unreadable("an exponent too large")
    return Fraction(mantissa.rstrip(".") or 0) * Fraction(10) ** int(exponent or 0)


_MAX_BITS = 60_000
_MAX_FACTORIAL = 5_000


def rational(tree: Tree) -> Fraction | None:
    """Return the exact value of a tree, or None if it is not rational, not finite, or too large.

    Example:
        >>> rational(("^", Fraction(2), Fraction(-3)))
        Fraction(1, 8)
        >>> rational(("root", Fraction(2), Fraction(2))) is None
        True
    """
    if isinstance(tree, Fraction):
        return tree
    operation = _OPERATIONS.get(tree[0])
    if operation is None:
        return None
    values: list[Fraction] = []
    for part in tree[1:]:  # a comprehension would halve the depth that can be read
        value = rational(part)
        if value is None:
            return None
        values.append(value)
    result = operation(*values) if len(values) == operation.__code__.co_argcount else None
    return result if result is not None and _bits(result) <= _MAX_BITS else None


def linear(tree: Tree, name: str) -> tuple[Fraction, Tree] | None:
    """Return a and b if the tree is a * name + b with a rational a, and b is free of the name."""
    if name not in names(tree):
        return Fraction(0), tree
    parts = [linear(part, name) for part in tree[1:]] if tree[0] in _FIELD else []
    match tree[0], parts:
        case "name", _:
            return Fraction(1), Fraction(0)
        case "neg", [(a, b)]:
            return -a, ("neg", b)
        case ("+" | "-") as sign, [(a, b), (c, d)]:
            return (a + c if sign == "+" else a - c), (sign, b, d)
        case "*", [(0, k), (a, b)] | [(a, b), (0, k)] if (factor := rational(k)) is not None:
            return a * factor, ("*", b, k)
        case "/", [(a, b), (0, k)] if divisor := rational(k):
            return a / divisor, ("/", b, k)
    return None


_FIELD = frozenset(("neg", "+", "-", "*", "/"))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        root = _root(base, Fraction(exponent.denominator))
        return None if root is None else _power(root, Fraction(exponent.numerator))
    count = exponent.numerator
    if (abs(count) * _bits(base) > _MAX_BITS and abs(base) != 1) or (base == 0 and count <= 0):
        return None
    return base**count


def _root(value: Fraction, degree: Fraction) -> Fraction | None:
    if degree.denominator != 1 or not 2 <= degree.numerator <= 64 or value < 0:
        return None
    above = _integer_root(value.numerator, degree.numerator)
    below = _integer_root(value.denominator, degree.numerator)
    return None if above is None or below is None else Fraction(above, below)


def _integer_root(value: int, degree: int) -> int | None:
    low = high = math.isqrt(value)
    if degree > 2:
        low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low if low**degree == value else None


def _factorial(value: Fraction) -> Fraction | None:
    if value.denominator != 1 or not 0 <= value.numerator <= _MAX_FACTORIAL:
        return None
    return Fraction(math.factorial(value.numerator))


def _binomial(above: Fraction, below: Fraction) -> Fraction | None:
    whole = _are_integers(above, below)
    if not whole or below < 0 or not 0 <= above <= _MAX_FACTORIAL:
        return None
    return Fraction(math.comb(above.numerator, below.numerator))


def _are_integers(*values: Fraction) -> bool:
    return all(value.denominator == 1 for value in values)


_OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": lambda a: abs(a),
    "floor": lambda a: Fraction(math.floor(a)),
    "ceil": lambda a: Fraction(math.ceil(a)),
    "/": lambda a, b: a / b if b else None,
    "^": _power,
    "root": _root,
    "!": _factorial,
    "gcd": lambda a, b: Fraction(math.gcd(int(a), int(b))) if _are_integers(a, b) else None,
    "mod": lambda a, b: a % b if b else None,
    "lcm": lambda a, b: Fraction(math.lcm(int(a), int(b))) if _are_integers(a, b) else None,
    "binom": _binomial,
}


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


_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_ROUNDING = {"⌊": "floor", "⌈": "ceil"}
_APPLIED = frozenset("fghFGH")
_SYNONYMS = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "log": "ln"}
_BARE_FACTORS = (("command", "frac"), ("command", "sqrt"))
_SIGNS = ("+", "-", "±", "∓")
_INFIX = ("choose", "over", "bmod", "mod")
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_MAX_DEPTH = 60


def parse_expression(tokens: Sequence[Token]) -> Tree:
    """Return the tree of an expression.

    Raises:
        Unsupported: it contains an integral, a limit or an infinite sum.
        Unreadable: it is not an expression.
    """
    if any(token.kind == "command" and token.text in UNSUPPORTED for token in tokens):
        raise Unsupported("integrals and limits are beyond the grammar")
    reader = _Parser(list(tokens))
    tree = reader.stacked_sums()
    if reader.peek() is not None:
        raise Unreadable(f"stray {reader.peek()}")
    return tree


class _Parser:
    """Recursive descent over a list of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.bars = 0
        self.braced = False

    def peek(self) -> str | None:
        """Text of the next token if it is a symbol, else `kind:text`; None at the end."""
        kind, text, _ = self.next
        return text if kind == "symbol" else f"{kind}:{text}" if kind else None

    @property
    def next(self) -> Token:
        """The next token, or one without a kind at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else Token("", "")

    def take(self) -> Token:
        if self.position >= len(self.tokens):
            raise Unreadable("something is missing at the end")
        self.position += 1
        return self.tokens[self.position - 1]

    def skip(self, *symbols: str) -> bool:
        """Take the next token if it is one of these."""
        matches = self.peek() in symbols
        self.position += matches
        return matches

    def expect(self, symbol: str) -> None:
        if not self.skip(symbol):
            raise Unreadable(f"expected {symbol}, found {self.peek()}")

    def negative(self) -> bool:
        """Take a sign; return whether it is a minus."""
        return not self.skip("+") and self.skip("-")

    def sums(self, closing: str) -> list[Tree]:
        """Parse sums between commas, and the bracket after them."""
        braced, self.braced = self.braced, False
        sums = [self.sum()]
        while self.skip(","):
            sums.append(self.sum())
        self.expect(closing)
        self.braced = braced
        return sums

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise Unreadable("nested too deep")
        tree: Tree = None
        while tree is None or self.peek() in _SIGNS:
            sign = self.take().text if self.peek() in _SIGNS else "+"
            if sign == "+" and tree is not None and self.skip("-"):  # 3 + -2
                sign = "-"
            term = self.product()
            if tree is not None:
                tree = (sign, tree, term)
            elif sign in ("±", "∓"):
                tree = (sign, Fraction(0), term)
            else:
                tree = ("neg", term) if sign == "-" else term
        self.depth -= 1
        return tree

    def stacked_sums(self) -> Tree:
        r"""Parse a sum, or two sums with \choose or \over between them."""
        tree = self.sum()
        if self.peek() in ("command:choose", "command:over"):
            tree = ("binom" if self.take().text == "choose" else "/", tree, self.sum())
        return tree

    def product(self) -> Tree:
        tree, position = None, self.position
        while True:
            symbol = self.peek()
            if tree is None:
                tree = self.signed_power()
            elif symbol in ("*", "/"):
                self.take()
                tree = (symbol, tree, self._divisor() if symbol == "/" else self.signed_power())
            elif self.skip("command:bmod", "command:mod"):
                modulus = self.signed_power()
                if isinstance(tree, Fraction) and isinstance(modulus, Fraction) and tree < modulus:
                    raise Unreadable("a class of numbers")  # 6 (mod 7)
                tree = ("mod", tree, modulus)
            elif self._starts_factor():
                tree = self._implicit_product(tree, position)
            else:
                return tree

    def _divisor(self) -> Tree:
        r"""Parse a divisor; letters without blanks between them are one: t/RC = t/(R C).

        Blanks after a Greek letter or Boltzmann's constant do not count: hc/\lambda kT. A power
        ends it after the first letter only: t/R^2C is tC/R^2, but t/LR^2C divides by all.
        """
        if self.next.kind not in ("name", "word"):
            return self.signed_power()
        product, together = None, False
        while True:
            letter, factor = self.next.text, self.atom()
            together = together or factor[1] == "k_B" or factor[1] in GREEK
            joined = factor[0] != "apply" and self._joins(letter, together)
            if not joined:
                factor = self.postfix(factor)
                joined = product is not None and self._joins(letter, together=False)
            product = factor if product is None else ("*", product, factor)
            if not joined:
                return product

    def _joins(self, before: str, together: bool) -> bool:
        kind, text, spaced = self.next
        letter = kind in ("name", "word") and "pi" not in (before, text)
        return letter and (not spaced or (together and text != "e"))

    def _implicit_product(self, tree: Tree, first: int) -> Tree:
        """Parse a factor without a sign before it: a product, or part of a mixed number."""
        before, at = self.tokens[self.position - 1], self.next
        whole = before.kind == "number" and before.text.isdecimal() and self.position == first + 1
        if at.kind == "number":
            mixed = self._plain_fraction() if whole and at.spaced else None
            if mixed is not None:
                return ("+", tree, mixed)
            following = self.tokens[self.position + 1 : self.position + 2]
            power = before.kind == "name" and following and following[0].text == "^"
            bracketed = before.text in (")", "}") and not isinstance(tree, Fraction)
            if not power and not bracketed:
                raise Unreadable("a number beside what is before it")
        factor = self.power()
        if isinstance(factor, Fraction):
            if at.text == "{" and isinstance(tree, Fraction):
                raise Unreadable("digits beside digits")
        elif whole and at[:2] == ("command", "frac"):
            match factor:
                case "/", Fraction() as above, Fraction() as below:
                    if not 0 < above < below:
                        raise Unreadable("a mixed number whose fraction is above one")
                    return ("+", tree, factor)
        return ("*", tree, factor)

    def _plain_fraction(self) -> Fraction | None:
        """Parse `a/b` in digits and below 1, as in 2 3/4."""
        run = self.tokens[self.position : self.position + 3]
        if len(run) < 3 or run[1].text != "/" or not (run[0].text + run[2].text).isdecimal():
            return None
        above, below = number(run[0].text), number(run[2].text)
        if not 0 < above < below:
            return None
        self.position += 3
        return above / below

    def _starts_factor(self) -> bool:
        kind, text, _ = self.next
        if kind != "symbol":
            return kind not in ("", "text", "begin", "end") and text not in _INFIX
        if text == "|":
            return self.bars == 0
        return text in _BRACKETS or text in _ROUNDING

    def signed_power(self) -> Tree:
        negative, tree = self.negative(), self.power()
        return ("neg", tree) if negative else tree

    def power(self) -> Tree:
        return self.postfix(self.atom())

    def postfix(self, tree: Tree) -> Tree:
        while (symbol := self.peek()) in ("^", "!", "%", "°"):
            self.take()
            if symbol == "!":
                if self.peek() == "!":
                    raise Unreadable("a factorial of a factorial")
                tree = ("!", tree)
            elif symbol == "%":
                tree = ("/", tree, Fraction(100))
            elif symbol == "°":
                tree = ("°", tree)
            else:
                tree = ("^", tree, self.script())
        return tree

    def script(self) -> Tree:
        """Parse an exponent or subscript: a group, or one signed atom."""
        if self.peek() == "{":
            return self.group()
        negative, tree = self.negative(), self.atom()
        if self.peek() == "^":  # right-associative
            tree = self.postfix(tree)
        return ("neg", tree) if negative else tree

    def group(self) -> Tree:
        opening = self.take().text
        outside = self.bars, self.braced
        self.bars, self.braced = 0, opening == "{"
        tree = self.stacked_sums() if self.braced else self.sum()
        self.expect(_BRACKETS[opening])
        self.bars, self.braced = outside
        return tree

    def argument(self) -> Tree:
        r"""Parse a TeX argument: a group or one token; of a number, one digit."""
        if self.peek() == "{":
            return self.group()
        kind, text, _ = self.next
        if kind == "number" and len(text) > 1:
            if not text.isdecimal():
                raise Unreadable("a decimal without braces")
            self.tokens[self.position] = Token("number", text[1:])
            return Fraction(text[0])
        return self.atom()

    def atom(self) -> Tree:
        kind, text, _ = self.take()
        if kind == "number":
            if self.peek() == "_":
                raise Unreadable("a numeral in another base inside an expression")
            while self.braced and self.peek() == ",":  # \sqrt{1,000}
                comma, digits = self.take(), self.take()
                text += f",{digits.text}" if not (comma.spaced or digits.spaced) else ", "
            if "," in text and not _GROUPED.fullmatch(text):
                raise Unreadable("a comma inside an argument")
            return number(text.replace(",", ""))
        if kind == "name":
            return self.name(text)
        if kind == "word":
            self.tokens[self.position : self.position] = [Token("name", letter) for letter in text]
            return self.atom()
        if kind == "command":
            return self.command(text)
        if kind == "symbol":
            if text in _BRACKETS:
                self.position -= 1
                return self.group()
            if text == "∞":
                return ("const", "∞")
            if text == "|":
                self.bars += 1
                tree = self.sum()
                self.bars -= 1
                self.expect("|")
                return ("abs", tree)
            if text in _ROUNDING:
                tree = self.sum()
                self.expect("⌋" if text == "⌊" else "⌉")
                return (_ROUNDING[text], tree)
        raise Unreadable(f"stray {text}")

    def name(self, name: str) -> Tree:
        """Parse the rest of a name: subscripts, primes and arguments."""
        bare = name
        while True:
            if self.skip("_"):
                name += "_" + self.subscript()
            elif self.skip("'"):
                name += "'"
            else:
                break
        if name in CONSTANTS:
            return ("const", CONSTANTS[name])
        if self.peek() == "(" and self._is_applied(bare):
            self.take()
            return ("apply", name, *self.sums(")"))
        return ("name", name)

    def _is_applied(self, name: str) -> bool:
        """f(...), x(t) and I(0) are function values, but n(n-1) is a product."""
        end = closing_bracket(self.tokens, self.position)
        inside = self.tokens[self.position + 1 : end]
        if name in _APPLIED or any(token.text == "," for token in inside):
            return True
        return len(inside) == 1 and inside[0].kind in ("name", "number") and inside[0].text != name

    def subscript(self) -> str:
        if self.peek() != "{":
            kind, text, _ = self.take()
            if kind != "word":
                return text
            rest = text[1:]
            self.tokens.insert(self.position, Token("word" if rest[1:] else "name", rest))
            return text[0]
        end = closing_bracket(self.tokens, self.position)
        inside = self.tokens[self.position + 1 : end]
        self.position = end + 1
        return join_text(inside).replace(" ", "")

    def command(self, name: str) -> Tree:
        if name == "frac" and (quotient := derivative(self.tokens, self.position)):
            name, self.position = quotient
            return ("name", name)
        if name in ("frac", "binom"):
            return ("/" if name == "frac" else name, self.argument(), self.argument())
        if name == "sqrt":
            return self.root()
        if name in FUNCTIONS:
            return self.function(_SYNONYMS.get(name, name))
        if name in ("sum", "prod"):
            return self.series(name)
        raise Unreadable(f"unknown command {name}")

    def series(self, name: str) -> Tree:
        """Parse a finite sum or product."""
        bounds: dict[str, Tree] = {}
        variable = None
        for _ in range(2):
            side = self.take().text
            if side == "_" and self.skip("{"):
                variable = self.atom()
                self.expect("=")
                bounds[side] = self.sum()
                self.expect("}")
            elif side == "^":
                bounds[side] = self.script()
        if set(bounds) != {"_", "^"} or not isinstance(variable, tuple) or variable[0] != "name":
            raise Unsupported("a sum without bounds")
        if bounds["^"] == ("const", "∞"):
            raise Unsupported("a sum without end")
        return (name, variable, bounds["_"], bounds["^"], self.product())

    def root(self) -> Tree:
        degree = self.group() if self.peek() == "[" else Fraction(2)
        inside = self.group() if self.peek() in ("{", "(") else self.atom()
        return ("root", inside, degree)

    def function(self, name: str) -> Tree:
        scripts: dict[str, Tree] = {}
        while self.peek() in ("^", "_"):
            sign = self.take().text
            scripts[sign] = self.script()
        power, base = scripts.get("^"), scripts.get("_")
        if self.peek() in ("(", "{", "["):
            arguments = self.sums(_BRACKETS[self.take().text])
        else:
            arguments = [self._bare_argument()]
        if base is not None and name == "ln":
            tree = ("/", ("ln", *arguments), ("ln", base))
        elif base is not None:
            raise Unsupported(f"{name} with a subscript")
        elif power == ("neg", Fraction(1)):  # sin^{-1} is the inverse function
            return (f"arc{name}", *arguments)
        else:
            tree = (name, *arguments)
        return tree if power is None else ("^", tree, power)

    def _bare_argument(self) -> Tree:
        """Parse the argument of `\\sin 2 x`: factors up to a sign, a slash or another function."""
        negative, tree = self.skip("-"), self.power()
        while self._starts_factor() and (
            self.next.kind in ("name", "word") or self.next[:2] in _BARE_FACTORS
        ):
            tree = ("*", tree, self.power())
        return ("neg", tree) if negative else tree
