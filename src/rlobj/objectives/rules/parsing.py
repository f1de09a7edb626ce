"""Parsing text into expressions with Python's `ast` module and a list of allowed node kinds.

The text is never evaluated: each allowed node builds one expression. Anything else is an error with
a caret under its first character.
"""

import ast
import inspect
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, NoReturn

from rlobj.base.errors import ConfigError, nearest, reported
from rlobj.base.targets import has_stand_in, import_target
from rlobj.objectives.rules import nodes
from rlobj.objectives.rules.columns import COLUMNS, Level, Scope
from rlobj.objectives.rules.nodes import CustomRule, Expr, Number, Rule
from rlobj.objectives.rules.operators import FUNCTIONS, NAMES, reward

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
_METHODS = {
    kind: [name for name, member in vars(kind).items() if name[0] != "_" and callable(member)]
    for kind in (Number, Rule)
}
_TEXTS = ("by", "of", "round", "name", "target")
"""Arguments that are texts."""


def parse(text: str, scope: Scope | None = None) -> Expr:
    """The expression that a text describes.

    Args:
        text: of a rule or a number.
        scope: the names that it may read besides those of every table.

    Raises:
        ConfigError: the text is not a rule; the message has a caret and the nearest name.

    Example:
        >>> parse("advantage > 0 and not prob >= 0.002")
        (advantage > 0) & ~(prob >= 0.002)
    """
    return _Parser(text, scope or Scope()).expression()


Expr.from_text = staticmethod(parse)  # numbers and rules may be given as text


def custom_rule(target: str, **settings: Any) -> Rule:
    """A rule written in Python: an instance of a subclass of `CustomRule`.

    Where settings are only read, its class is not imported.

    Args:
        target: "package.module:Class" or "path/to/file.py:Class".
        **settings: the fields of the class.

    Raises:
        ConfigError: there is no such class, or it has no such fields.
    """
    if has_stand_in(target):
        texts = [repr(target), *(f"{name}={value!r}" for name, value in settings.items())]
        read = tuple(value for value in settings.values() if isinstance(value, Expr))
        return nodes.UnreadRule(f"custom({', '.join(texts)})", read)
    member = import_target(target)
    if not (isinstance(member, type) and issubclass(member, CustomRule)):
        raise ConfigError(f"target {target!r} must be a subclass of rlobj's CustomRule")
    member.origin = target
    with reported(ConfigError, target, TypeError):  # a setting is absent or unknown
        return member(**settings)


_CALLS: dict[str, Callable[..., Expr]] = {**FUNCTIONS, "reward": reward, "custom": custom_rule}


class _Parser:
    """A parser of one text."""

    def __init__(self, text: str, scope: Scope) -> None:
        self.text, self.scope = " ".join(text.split()), scope

    def expression(self) -> Expr:
        """The expression of the whole text."""
        if "#" in self.text:  # lines are joined, so a comment would hide the rest of the rule
            self.fail("a rule cannot hold a comment", self.text.index("#"))
        try:
            tree = ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            self.fail(f"cannot be read: {error.msg}", (error.offset or 1) - 1)
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
        return whole

    def fail(self, message: str, at: ast.AST | int) -> NoReturn:
        """Raise a ConfigError with the text, and a caret under a character or the node's first."""
        if isinstance(at, ast.AST):  # ast counts bytes of UTF-8, a terminal counts characters
            at = len(self.text.encode()[: at.col_offset].decode(errors="ignore"))  # type: ignore[attr-defined]
        raise ConfigError(message, f"\n    {self.text}\n    {' ' * at}^") from None

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
        except TypeError as error:  # a number in place of a rule
            self.fail(f"{error}; put each comparison in parentheses", node)

    def build_Name(self, node: ast.Name) -> Expr:
        name, scope = node.id, self.scope
        if name in scope.named:
            return scope.named[name]
        if name in COLUMNS:
            return nodes.Column(name)
        if name in scope.columns:
            return nodes.Column(name, Level[scope.columns[name].upper()])
        if name == nodes.SAMPLER_KNOWN:
            return nodes.SamplerKnown()
        if name in _CALLS or any(name in methods for methods in _METHODS.values()):
            self.fail(f"'{name}' must be called with arguments in parentheses", node)
        if name[0].isupper():
            return nodes.Controlled(name)
        known = (*NAMES, *scope.columns, *scope.named)
        self.fail(f"unknown name '{name}'.{nearest(name, known)} Or declare it in columns.", node)

    def build_Constant(self, node: ast.Constant) -> Expr:
        if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
            self.fail(f"expected a number, got {node.value!r}", node)
        return nodes.Constant(node.value)

    def build_BinOp(self, node: ast.BinOp) -> Expr:
        if type(node.op) not in _OPERATORS:
            self.fail(f"operator {type(node.op).__name__} is not allowed; use + - * / ** & |", node)
        return _OPERATORS[type(node.op)](self.build(node.left), self.build(node.right))

    def build_BoolOp(self, node: ast.BoolOp) -> Expr:
        join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
        return reduce(join, map(self.build, node.values))

    def build_UnaryOp(self, node: ast.UnaryOp) -> Expr:
        operand = self.build(node.operand)
        if isinstance(node.op, (ast.Not, ast.Invert)):
            return ~operand
        if isinstance(operand, Number) and isinstance(node.op, ast.USub):
            return -operand
        self.fail(f"{type(node.op).__name__} cannot stand before '{operand}'", node)

    def build_Compare(self, node: ast.Compare) -> Expr:
        if len(node.ops) > 1:
            self.fail("put each comparison in parentheses: (0 < x) & (x < 1)", node.comparators[0])
        kind = type(node.ops[0])
        if kind not in _OPERATORS:
            self.fail("use <, <=, > or >= (equality of floats is never exact)", node)
        return _OPERATORS[kind](self.build(node.left), self.build(node.comparators[0]))

    def build_Call(self, node: ast.Call) -> Expr:
        if isinstance(node.func, ast.Name):
            name, what, known = node.func.id, "function", _CALLS
        elif isinstance(node.func, ast.Attribute):
            owner, name = self.build(node.func.value), node.func.attr
            methods = _METHODS[Number if isinstance(owner, Number) else Rule]
            what, known = f"method of '{owner}'", {key: getattr(owner, key) for key in methods}
        else:
            self.fail("this is not a function", node)
        if name not in known:
            self.fail(f"'{name}' is no {what}.{nearest(name, known)}", node)
        function = known[name]
        signature = inspect.signature(function)
        names = [*signature.parameters][: len(node.args)]
        texts = function is custom_rule
        values = [self.argument(name, value) for name, value in zip(names, node.args, strict=False)]
        settings = {str(k.arg): self.argument(str(k.arg), k.value, texts) for k in node.keywords}
        try:
            signature.bind(*values, *node.args[len(names) :], **settings)
        except TypeError as error:
            self.fail(f"{error}; write {name}({', '.join(signature.parameters)})", node)
        return function(*values, **settings)

    def argument(self, name: str, node: ast.AST, text: bool = False) -> Any:
        """A plain value, or else an expression."""
        if isinstance(node, ast.Name) and node.id in ("true", "false"):  # as in YAML
            return node.id == "true"
        if not isinstance(node, ast.Constant) or (
            isinstance(node.value, str) and not text and name not in _TEXTS
        ):
            value = self.build(node)
            return value.value if isinstance(value, nodes.Constant) else value
        if name == "by" and node.value not in nodes.BY:
            nodes.check_choice("by", node.value, (*nodes.BY, *self.scope.columns))
            return self.build_Name(ast.Name(str(node.value)))
        return node.value
