"""Pydantic models whose error lists all mistakes, each with its path and the nearest name.

Primitive: the base of small frozen models that have one published equation each.

A family (Surrogate, Divisor, ...) is a direct subclass of Primitive. The `kind` of a member is its
class name in snake_case. In YAML:

    surrogate: {kind: clip, low: 0.2, high: 0.28}
    surrogate: unclipped                                             # a kind with its defaults
    surrogate: {kind: custom, target: "my_pkg.losses:MySurrogate"}   # a class that can be imported
"""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from rlobj.base.errors import ConfigError, Message, nearest
from rlobj.base.targets import has_stand_in, import_target, shown


class InvalidFields(ConfigError):
    """An error with all mistakes in one model, as (path, message) pairs."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = problems
        lines = [Message(f"{path}: " if path else "", text) for path, text in problems]
        super().__init__(Message.joined("\n", lines))


class Model(BaseModel):
    """A frozen pydantic model that raises `InvalidFields` for unknown keys, NaN and infinity.

    The text below a field says what it means, also in the documentation and the JSON schema.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InvalidFields(_problems(error, type(self), data)) from None

    @classmethod
    def keys(cls) -> list[str]:
        """The names of the fields in configurations; a field's alias if it has one."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """The text below each field, by the field's key."""
        fields = zip(cls.keys(), cls.model_fields.values(), strict=True)
        return {
            key: " ".join(field.description.split()) for key, field in fields if field.description
        }


def require_address(url: str) -> str:
    """The address of a server, to which a path can be added.

    Raises:
        ConfigError: another scheme than http and https, no host, or a port that there is not.

    Example:
        >>> require_address("http://127.0.0.1:8000")
        'http://127.0.0.1:8000'
    """
    with contextlib.suppress(ValueError):  # such as a port that is no number
        parts = urlsplit(url)
        plain = url.isprintable() and not {*url} & {*" \\?#"}
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and plain:
            return url
    raise ConfigError(
        f"{shown(url)} is not the address of a server; expected for example http://127.0.0.1:8000"
    )


Address = Annotated[str, AfterValidator(require_address)]
"""The address of a server."""


def half_surrogates(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The texts in a value that cannot be written to a file: dotted name and what is wrong."""
    if isinstance(value, str):
        if not value.isascii() and _SURROGATE.search(value):
            shown = ascii(value[:80])
            problem = f"half a surrogate pair, such as \\ud800, is no character, got {shown}"
            yield name.encode(errors="backslashreplace").decode(), problem
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            path = f"{name}.{key}" if name else str(key)
            yield from half_surrogates(key, path)
            yield from half_surrogates(inner, path)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from half_surrogates(inner, name)


_SURROGATE = re.compile(r"[\ud800-\udfff]")
_WORDS = {
    bool: ("true", "false"),
    int: ("a whole number",),
    float: ("a number",),
    tuple[str, ...]: ("a list of texts",),
}
"""Descriptions of types in union fields, for error messages."""
_LIMITS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}


def _problems(
    error: ValidationError, model: type[Model], data: Mapping[str, Any]
) -> list[tuple[str, str]]:
    unions = {
        field.alias or name: words
        for name, field in model.model_fields.items()
        if (words := _words(field.annotation))
    }
    found: list[tuple[str, str]] = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        cause = item.get("ctx", {}).get("error")
        name, _, member = path.partition(".")
        if member and (words := unions.get(name)):
            # pydantic reports one mistake for each member, with the member in the path.
            problem = (name, _no_member(words, data.get(name, item["input"])))
            found += [problem] if problem not in found else []
        elif isinstance(cause, InvalidFields):
            found += [
                (".".join(filter(None, (path, inner))), text) for inner, text in cause.problems
            ]
        elif isinstance(cause, ConfigError):
            found.append((path, cause.message))
        elif item["type"] == "extra_forbidden":
            found.append((path, f"unknown key.{nearest(str(item['loc'][-1]), model.keys())}"))
        elif item["type"] == "model_type":
            expected = "expected a mapping of settings, as in {name: value}"
            found.append((path, f"{expected}, got {item['input']!r}"))
        elif item["type"] == "missing":
            found.append((path, "is required"))
        elif item["type"] == "literal_error":
            known = re.findall(r"'([^']*)'", item.get("ctx", {}).get("expected", ""))
            advice = nearest(str(item["input"]), known, spell_out=False) if known else ""
            found.append((path, f"{item['msg']}, got {item['input']!r}.{advice}"))
        else:
            message = item["msg"].replace("a valid tuple", "a list in brackets")
            if item["type"] == "finite_number" and path in model.model_fields:
                message += f", such as {model.model_fields[path].default:g}"
            found.append((path, f"{message}, got {item['input']!r}"))
    return found


def _words(annotation: Any) -> list[str]:
    """The allowed values of a union of `_WORDS`, also with limits, and literals; else []."""
    members = [member for member in get_args(annotation) if member is not NoneType]
    if get_origin(annotation) not in (Union, UnionType) or len(members) < 2:
        return []
    words: list[str] = []
    for member in members:
        names = get_args(member) if get_origin(member) is Literal else _WORDS.get(member)
        if get_origin(member) is Annotated:
            kind, field = get_args(member)
            limits = [
                f"{text} {getattr(each, key):g}"
                for each in field.metadata
                for key, text in _LIMITS.items()
                if hasattr(each, key)
            ]
            names = (f"{_WORDS[kind][0]} {' and '.join(limits)}",)
        if not names:
            return []
        words += names
    return words


def _no_member(words: list[str], given: Any) -> str:
    *first, last = words
    names = [word for word in words if " " not in word]
    advice = nearest(str(given), names, spell_out=False)
    return f"expected {', '.join(first)} or {last}, got {given!r}{advice and '.' + advice}"


class Primitive(Model):
    """Base class of all families.

    Attributes:
        kind: the name in configurations; "custom" for classes outside rlobj.
        origin: the target that a custom class was imported from.
        registry: the members of a family by their kind.
    """

    kind: ClassVar[str] = ""
    origin: ClassVar[str] = ""
    registry: ClassVar[dict[str, type[Primitive]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if Primitive in cls.__bases__:
            cls.registry = {}
            return
        own = cls.__module__.startswith("rlobj.")
        cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower() if own else "custom"
        if own and not cls.__name__.startswith("_"):
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
            known = {*cls.registry, "custom"}
            given = "is missing" if kind is None else f"{kind!r} is unknown"
            raise ConfigError(f"kind {given}.{nearest(str(kind), known)}")
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
        fields = {key: {"description": "; ".join(each)} for key, each in texts.items()}
        settings = {"kind": {"const": "custom"}, "target": {"type": "string"}, **fields}
        return {"anyOf": [kinds, {"type": ["object", "array"], "properties": settings}]}

    @model_serializer(mode="wrap")
    def _with_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        head = {"kind": self.kind}
        if self.kind == "custom":
            head["target"] = self.origin or f"{type(self).__module__}:{type(self).__qualname__}"
        return {**head, **handler(self)}

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
    member: Any = types.new_class(
        target.rpartition(":")[2], (family,), {}, lambda x: x.update(body)
    )
    member.origin = target
    return member
