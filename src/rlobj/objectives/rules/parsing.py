"""Parsing text into expressions with Python's `ast` module and a list of allowed node kinds.

The text is never evaluated: each allowed node builds one expression. Anything else is an error with
a caret under its first character.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable
from functools import reduce
from typing import Any, NoReturn

from rlobj.base.errors import ConfigError, Message, nearest
from rlobj.objectives.rules import nodes
from rlobj.objectives.rules.columns import COLUMNS, FUNCTIONS, declared_columns, named_expressions
from rlobj.objectives.rules.custom import custom_rule
from rlobj.objectives.rules.expression import Expr

MAX_DEPTH = 100
"""The deepest expression that is accepted; deeper ones could exceed Python's recursion limit."""
_OPERATORS: dict[type, Callable[[Any, Any], Expr]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_HINTS = {
    r"&&|\|\|": "write & or | once",
    r"!(?!=)": "write ~ before a rule in parentheses",
    r"(?<![<>=!])=(?!=)": "compare with < or >, such as reward < 1",
    r"\d,\d": "write a point in a number: 0.01",
    r"\d%": "write a share as a number: 0.8",
    r"unmatched '\)'": "delete it, or write the ( that it closes",
    r"'\(' was never closed": "write the ) that closes it",
}
"""What was probably meant, by a pattern of the text around the error, or of Python's message."""
_RULE_METHODS = ("sample", "any", "all", "count", "share")
_METHODS = (
    *("top", "bottom", "bottom_to_mean", "quantile", "rank", "mean", "sum", "min", "max"),
    *("prefix_sum", "suffix_sum"),
    *_RULE_METHODS,
)


def parse(text: str) -> Expr:
    """The expression that a text describes.

    Raises:
        ConfigError: the text is not a rule; the message has a caret and the nearest name.

    Example:
        >>> parse("advantage > 0 and not prob >= 0.002")
        Logic(operator='&', ...)
    """
    return Parser(text).expression()


Expr.from_text = staticmethod(parse)  # numbers and rules may be given as text


class Parser:
    """A parser of one text.

    Attributes:
        unknown: the errors of unknown names so far, by the character of the name.
    """

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self.unknown: dict[int, str] = {}

    def expression(self) -> Expr:
        """The expression of the whole text."""
        if "#" in self.text:  # lines are joined, so a comment would hide the rest of the rule
            self.fail("a rule cannot hold a comment", self.text.index("#"))
        try:
            tree = ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            at = (error.offset or 1) - 1
            around = f"{self.text[max(at - 2, 0) : at + 3]} {error.msg}"
            hints = [f"; {hint}" for sign, hint in _HINTS.items() if re.search(sign, around)]
            self.fail(f"cannot be read: {error.msg}{''.join(hints[:1])}", at)
        except (ValueError, RecursionError, MemoryError) as error:
            self.fail(f"cannot be read: {str(error) or 'nested too deeply'}", 0)
        try:
            whole = self.build(tree)
        except RecursionError:
            self.fail("is nested too deeply", 0)
        level: list[Expr] = [whole]
        for _ in range(MAX_DEPTH):
            level = [*{id(child): child for node in level for child in node.children()}.values()]
        if level:
            self.fail(f"is nested more than {MAX_DEPTH} levels deep", 0)
        if self.unknown:
            self.fail("", 0)
        return whole

    def fail(self, message: str, at: ast.AST | int) -> NoReturn:
        """Raise a ConfigError with the text and a caret; unknown names come first, all of them.

        Args:
            message: the first line of the error.
            at: the character or the node under which the caret is.
        """
        errors = self.unknown or {self._place(at): message}
        *others, final = (errors[place] for place in sorted(errors))
        texts = [*(text.partition(" Known:")[0] for text in others), final]
        caret = " " * min(errors) + "^"
        marked = f"\n    {self.text}\n    {caret}"
        raise ConfigError(Message.joined(" ", texts), marked) from None

    def _place(self, at: ast.AST | int, last: str = "") -> int:
        """The character of a node, or of the name at its end."""
        if isinstance(at, int):
            return at
        # ast counts bytes of UTF-8, a terminal counts characters
        byte = at.end_col_offset - len(last.encode()) if last else at.col_offset  # type: ignore[attr-defined]
        return len(self.text.encode()[:byte].decode(errors="ignore"))

    def missing(self, message: str, at: ast.AST, last: str = "") -> Expr:
        """Note an unknown name, and go on with a column in its place to find the others."""
        self.unknown[self._place(at, last)] = message
        return nodes.Column("prob")

    def build(self, node: ast.AST) -> Any:
        builder = getattr(self, f"build_{type(node).__name__}", None)
        if builder is None:
            self.fail(f"{type(node).__name__} is not part of the rule language", node)
        try:
            return builder(node)
        except ConfigError as error:
            if "\n" in str(error):  # it has a caret already
                raise
            self.fail(str(error), node)

    def build_Name(self, node: ast.Name) -> Expr:
        if node.id in named_expressions():
            return named_expressions()[node.id]
        if node.id in COLUMNS or node.id in declared_columns():
            return nodes.Column(node.id)
        if node.id == nodes.SAMPLER_KNOWN:
            return nodes.SamplerKnown()
        if node.id in (*FUNCTIONS, *_METHODS):
            self.fail(f"'{node.id}' must be called with arguments in parentheses", node)
        try:
            return nodes.Controlled(node.id)
        except ConfigError as error:
            return self.missing(str(error), node)

    def build_Constant(self, node: ast.Constant) -> Expr:
        if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
            advice = "; write it without quotes" if isinstance(node.value, str) else ""
            self.fail(f"expected a number, got {node.value!r}{advice}", node)
        return nodes.Constant(node.value)

    def build_BinOp(self, node: ast.BinOp) -> Expr:
        if type(node.op) not in _OPERATORS:
            self.fail(f"operator {type(node.op).__name__} is not allowed; use + - * / ** & |", node)
        return _OPERATORS[type(node.op)](self.build(node.left), self.build(node.right))

    def build_BoolOp(self, node: ast.BoolOp) -> Expr:
        join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
        return reduce(join, map(self.build, node.values))

    def build_UnaryOp(self, node: ast.UnaryOp) -> Expr:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            operand = self.build(node.operand)
            # -0.5 is a constant; -(0.5) is the negative of one
            between = self.text.encode()[node.col_offset + 1 : node.operand.col_offset]
            return -operand if b"(" in between else nodes.Constant(-operand.value)
        operand = self.build(node.operand)
        if isinstance(node.op, (ast.Not, ast.Invert)):
            return ~operand
        if not operand.is_rule and isinstance(node.op, ast.USub):
            return -operand
        self.fail(f"{type(node.op).__name__} cannot stand before '{operand}'", node)

    def build_Compare(self, node: ast.Compare) -> Expr:
        if len(node.ops) > 1:
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and part.id not in (*FUNCTIONS, *_METHODS, "custom"):
                    self.build(part)  # notes an unknown name
            if isinstance(getattr(node.comparators[0], "op", None), (ast.BitAnd, ast.BitOr)):
                self.fail(
                    "'&' and '|' bind more tightly than a comparison. Put each comparison in "
                    "parentheses: (advantage > 0) & (prob < 0.002)",
                    node.comparators[0],
                )
            self.fail(
                "comparisons do not chain; write (0 < prob) & (prob < 1), each comparison in "
                "parentheses",
                node.comparators[1],
            )
        kind = type(node.ops[0])
        if kind not in _OPERATORS:
            self.fail("use <, <=, > or >= (equality of floats is never exact)", node)
        return _OPERATORS[kind](self.build(node.left), self.build(node.comparators[0]))

    def build_Call(self, node: ast.Call) -> Expr:
        if isinstance(node.func, ast.Name):
            return self.call_function(node, node.func.id)
        if not isinstance(node.func, ast.Attribute):
            self.fail("this is not a function", node)
        method = node.func.attr
        owner = self.build(node.func.value)
        if method not in _METHODS:
            advice = nearest(method, _METHODS)
            return self.missing(f"unknown method '.{method}'.{advice}", node.func, method)
        if owner.is_rule != (method in _RULE_METHODS):
            kind = "rules" if method in _RULE_METHODS else "numbers"
            self.fail(f"'.{method}' is for {kind}, got '{owner}'", node.func)
        bound = getattr(owner, method)
        parameters = inspect.signature(bound).parameters.values()
        arguments = self.arguments(node, tuple(parameter.name for parameter in parameters))
        for parameter in parameters:
            if parameter.default is parameter.empty and parameter.name not in arguments:
                self.fail(f"'.{method}' needs {parameter.name}: {method}(0.2)", node)
        return bound(**arguments)

    def call_function(self, node: ast.Call, name: str) -> Expr:
        if name in ("reward", "custom"):
            return self.call_named(node, name)
        if name not in FUNCTIONS:
            advice = nearest(name, (*FUNCTIONS, "reward", "custom"))
            return self.missing(f"'{name}' is not a function.{advice}", node)
        expected = FUNCTIONS[name]
        if node.keywords or len(node.args) != len(expected):
            usage = f"{name}({', '.join(expected)})"
            self.fail(f"write {usage}, got {len(node.args)} arguments", node)
        values = [self.build(argument) for argument in node.args]
        for value, kind, argument in zip(values, expected, node.args, strict=True):
            if value.is_rule != (kind == "rule"):
                got_kind = "the rule" if value.is_rule else "the number"
                wanted = "a rule" if kind == "rule" else "a number"
                self.fail(f"{name} takes {wanted}, got {got_kind} '{value}'", argument)
        return nodes.When(*values) if name == "when" else nodes.Function(name, tuple(values))

    def call_named(self, node: ast.Call, name: str) -> Expr:
        """reward("name") or custom("module:Class", setting=value)."""
        usage = 'reward("format")' if name == "reward" else 'custom("my_pkg.rules:MyRule", a=1)'
        text = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if len(node.args) != 1 or not isinstance(text, str) or (name == "reward" and node.keywords):
            self.fail(f"write {usage}", node)
        if name == "reward":
            return nodes.NamedReward(text)
        fields = {str(k.arg): self.argument(str(k.arg), k.value, True) for k in node.keywords}
        return custom_rule(text, fields)

    def arguments(self, node: ast.Call, names: tuple[str, ...]) -> dict[str, Any]:
        if len(node.args) > len(names):
            self.fail(f"too many arguments; expected {', '.join(names)}", node.args[len(names)])
        arguments = dict(zip(names, node.args, strict=False))
        for keyword in node.keywords:
            if keyword.arg not in names:
                name = str(keyword.arg)
                self.fail(f"unknown argument '{name}'.{nearest(name, names)}", keyword)
            if keyword.arg in arguments:
                self.fail(f"argument '{keyword.arg}' is given twice", keyword)
            arguments[keyword.arg] = keyword.value
        return {
            name: self.argument(name, value, name == "size") for name, value in arguments.items()
        }

    def argument(self, name: str, node: ast.AST, or_rule: bool = False) -> Any:
        if name == "within" and not isinstance(node, ast.Constant):
            return self.build(node)
        if name == "within" and node.value is not None:  # type: ignore[attr-defined]
            text = ast.unparse(node)
            self.fail(f"within takes a rule without quotes: within=prob < 0.002, got {text}", node)
        whole, sign = node, 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node, sign = node.operand, -1
        if isinstance(node, ast.Name) and node.id in ("true", "false"):  # as in YAML
            return node.id == "true"
        plain = isinstance(node, ast.Constant)
        if not plain or (sign < 0 and not isinstance(node.value, (int, float))):
            if or_rule:  # the size of a sample, or a setting of a custom rule
                return self.build(whole)
            self.fail(f"'{name}' must be written as a plain value, such as 0.2 or 'group'", node)
        return node.value if sign > 0 else -node.value  # type: ignore[operator]
