"""Rules written in Python, which text names by their path: custom("pkg.module:MyRule")."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.targets import has_stand_in, import_target
from rlobj.objectives.rules.expression import Expr, Level, settings
from rlobj.objectives.rules.nodes import Rule


class CustomRule(Rule):
    """Base class of rules written in Python; subclasses are frozen dataclasses.

    Example:
        >>> from dataclasses import dataclass
        >>> from rlobj import CustomRule, prob
        >>> @dataclass(frozen=True)
        ... class Isolated(CustomRule):
        ...     threshold: float = 0.002
        ...     def reads(self):
        ...         return (prob,)
        ...     def select(self, frame):
        ...         rare = frame.number(prob) < self.threshold
        ...         alone = frame.table.sum_by_response(rare.double()) == 1
        ...         return rare & frame.table.spread(alone)
    """

    origin: ClassVar[str] = ""
    reads_tokens: ClassVar[bool] = True
    level: ClassVar[Level] = Level.TOKEN  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def target(self) -> str:
        """The import path, as text has it: custom("my_pkg.rules:Isolated", threshold=0.002)."""
        return self.origin or f"{type(self).__module__}:{type(self).__qualname__}"

    def __str__(self) -> str:
        return f"custom({', '.join([repr(self.target), *settings(self, required=True)])})"

    def reads(self) -> tuple[Expr, ...]:
        """The expressions that `select` asks the frame for; the objective needs their columns."""
        return ()

    def children(self) -> tuple[Expr, ...]:
        reads = self.reads()
        if not is_dataclass(self) or type(self).__hash__ is None or not isinstance(reads, tuple):
            raise ConfigError(
                f"{self.target}: write @dataclass(frozen=True) above the class, and return a tuple "
                "of expressions from reads"
            )
        return (*super().children(), *reads)

    def select(self, frame: Any) -> Any:
        """The rule's tokens, bool [N].

        `plan` calls this once per update on every rank, with all tokens of this rank. The result
        must not depend on how the update is split into tables or ranks: tokens of other ranks may
        only be read through `frame.comm.sum`, which every rank must call equally often. The
        functions of `rlobj.objectives.statistics` are exact and take `frame.comm`.

        Args:
            frame: `number(expression)` [N], `rule(expression)` bool [N], `decided` bool [N],
                `table` (the TokenBatch of this rank's tokens), `comm` and `state`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class StandIn(CustomRule):
    """A rule of settings that are only read: its class is not imported, and it has no tokens."""

    path: str
    """The target."""
    fields: str
    """The settings of the class, as text."""
    expressions: tuple[Expr, ...]
    """Those of the settings that are expressions."""

    @property
    def target(self) -> str:
        return self.path

    def __str__(self) -> str:
        return f"custom({self.path!r}{self.fields})"

    def select(self, frame: Any) -> Any:
        """Refuse: there is nothing to evaluate.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self} is code, and nothing is imported where settings are only read, so its tokens "
            "are not known. If you trust the code: rlobj replay RUN --rule RULE"
        )


def custom_rule(target: str | None, settings: dict[str, Any]) -> Any:
    """A rule written in Python: an instance of a subclass of `CustomRule`.

    Where settings are only read, it is a stand-in.

    Args:
        target: "package.module:Class" or "path/to/file.py:Class".
        settings: the fields of the class.

    Raises:
        ConfigError: there is no such class, or it has no such fields.
    """
    if has_stand_in(target):
        texts = (
            f", {name}={value if isinstance(value, Expr) else repr(value)}"
            for name, value in settings.items()
        )
        expressions = tuple(value for value in settings.values() if isinstance(value, Expr))
        return StandIn(str(target), "".join(texts), expressions)
    member = import_target(target)
    if not (isinstance(member, type) and issubclass(member, CustomRule)):
        raise ConfigError(f"target {target!r} must be a subclass of rlobj's CustomRule")
    names = tuple(inspect.signature(member).parameters)
    for name in settings:
        if name not in names:
            raise ConfigError(f"{target} has no setting '{name}'.{nearest(name, names)}")
    member.origin = str(target)
    try:
        return member(**settings)
    except TypeError as error:  # a setting without default is absent
        raise ConfigError(f"{target}: {error}") from None
