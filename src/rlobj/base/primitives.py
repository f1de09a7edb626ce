"""Primitive: the base of small frozen models that have one published equation each.

A family (Surrogate, Divisor, ...) is a direct subclass of Primitive. The `kind` of a member is its
class name in snake_case. In YAML:

    surrogate: {kind: clip, low: 0.2, high: 0.28}
    surrogate: unclipped                                             # a kind with its defaults
    surrogate: {kind: custom, target: "my_pkg.losses:MySurrogate"}   # a class that can be imported
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from rlobj.base.errors import BatchError, ConfigError, nearest
from rlobj.base.showing import place_of
from rlobj.base.targets import has_stand_in, import_target, names_in_file
from rlobj.base.validation import Model


class Primitive(Model):
    """Base class of all families.

    Attributes:
        kind: the name in configurations; "custom" for classes outside rlobj.
        origin: the target that a custom class was imported from.
        custom: what a target of the family names, a class or a function.
        registry: the members of a family by their kind.
    """

    kind: ClassVar[str] = ""
    origin: ClassVar[str] = ""
    custom: ClassVar[str] = "class"
    registry: ClassVar[dict[str, "type[Primitive]"]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if Primitive in cls.__bases__:
            cls.registry = {}
            return
        built_in = cls.__module__.startswith("rlobj.")
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        cls.kind = name if built_in else "custom"
        if built_in and not cls.__name__.startswith("_"):
            cls.registry[cls.kind] = cls

    @classmethod
    def build(cls, value: Any) -> Self:
        """A member of this family.

        Args:
            value: a member, a kind, or a mapping with `kind` and settings.

        Raises:
            ConfigError: unknown kind or target, or wrong settings (all of them in one error).
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict):
            raise ConfigError(f"expected a {cls.__name__} or a mapping with 'kind', got {value!r}")
        settings = dict(value)
        kind = settings.pop("kind", None)
        if kind == "custom":
            member = _import_member(settings.pop("target", None), cls)
        elif isinstance(kind, str) and kind in cls.registry:
            member = cls.registry[kind]
        else:
            kinds = {*cls.registry, "custom"}
            mistake = "is missing" if kind is None else f"{kind!r} is unknown"
            advice = names_in_file(str(kind), cls.custom) or nearest(str(kind), kinds)
            raise ConfigError(f"kind {mistake}.{advice}")
        return member(**settings)  # type: ignore[return-value]

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        if Primitive not in cls.__bases__:
            return super().__get_pydantic_json_schema__(schema, handler)
        kinds = {"enum": [*sorted(cls.registry), "custom"]}
        texts: dict[str, list[str]] = {}
        for kind, member in cls.registry.items():
            for key in member.keys():  # noqa: SIM118
                texts.setdefault(key, []).append(f"{kind}: {member.meanings().get(key, '')}")
        fields = {key: {"description": "; ".join(lines)} for key, lines in texts.items()}
        settings = {"kind": {"const": "custom"}, "target": {"type": "string"}, **fields}
        return {"anyOf": [kinds, {"type": ["object", "array"], "properties": settings}]}

    @model_serializer(mode="wrap")
    def _with_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        head = {"kind": self.kind}
        if self.kind == "custom":
            name = f"{type(self).__module__}:{type(self).__qualname__}"
            head["target"] = vars(type(self)).get("origin", name)  # not that of its base
        return {**head, **handler(self)}

    def checked(self, value: Any, shape: Sequence[int], method: Any) -> Any:
        """A value that a method of this primitive returned.

        Raises:
            BatchError: it is no tensor of this shape.
        """
        if (actual := getattr(value, "shape", None)) == shape:
            return value
        what = f"a {type(value).__name__}" if actual is None else f"a tensor {[*actual]}"
        expected = f"expected a tensor {[*shape]}, one number for each"
        raise BatchError(f"{self} returned {what}; {expected}{place_of(method)}")

    def __str__(self) -> str:
        settings = self.model_dump(exclude_defaults=True)
        settings.pop("kind")
        if self.kind == "custom":
            settings.pop("target")
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in settings.items())})"


def _import_member(target: str | None, family: type[Primitive]) -> type[Primitive]:
    """The class that a target names; a stand-in where settings are only read.

    Raises:
        ConfigError: the class is not a member of the family.
    """
    if has_stand_in(target):
        return _stand_in(str(target), family)
    member = import_target(target)
    if not (isinstance(member, type) and issubclass(member, family)):
        raise ConfigError(f"target {target!r} must be a subclass of rlobj's {family.__name__}")
    member.origin = str(target)
    return member


@cache
def _stand_in(target: str, family: type[Primitive]) -> type[Primitive]:
    """A class in place of one that is not imported: it has all settings and no equation."""
    body = {
        "__module__": "not_imported",
        "__doc__": f"{target}, which is not imported here.",
        "model_config": ConfigDict(extra="allow"),
    }
    metaclass: Any = type(family)
    member = metaclass(target.rpartition(":")[2], (family,), body)
    member.origin = target
    return member
