"""Pydantic models whose error lists all mistakes, each with its path and the nearest name."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from rlobj.base.errors import ConfigError, Message, nearest


class UnknownKey(Message):
    """What is wrong with a key that a model does not have.

    Attributes:
        known: the keys that it has.
    """

    known: Sequence[str]

    @classmethod
    def among(cls, key: str, known: Sequence[str]) -> "UnknownKey":
        """The message about a key."""
        message = cls("unknown key.", nearest(key, known))
        message.known = known
        return message


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
            raise InvalidFields(_problems(error, type(self))) from None

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

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        described = handler(schema)
        properties = handler.resolve_ref_schema(described).get("properties", {})
        for key, text in cls.meanings().items():
            properties[key]["description"] = text
        return described


def half_surrogates(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The texts in a value that cannot be written to a file: dotted name and what is wrong."""
    if isinstance(value, str):
        if not value.isascii() and re.search(r"[\ud800-\udfff]", value):
            wrong = f"half a surrogate pair is no character, got {value[:80]!a}"
            yield name.encode(errors="backslashreplace").decode(), wrong
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            path = f"{name}.{key}" if name else str(key)
            yield from half_surrogates(key, path)
            yield from half_surrogates(inner, path)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from half_surrogates(inner, name)


def _problems(error: ValidationError, model: type[Model]) -> list[tuple[str, str]]:
    unions = {
        field.alias or name
        for name, field in model.model_fields.items()
        if get_origin(field.annotation) in (Union, UnionType)
        and any(get_origin(member) is Literal for member in get_args(field.annotation))
    }
    problems: list[tuple[str, str]] = []
    for item in error.errors():
        name, *place = item["loc"] or ("",)
        of_union = name in unions and bool(place)
        if of_union:  # pydantic reports one mistake for each member, which it names
            place = place[1:]
        path = ".".join(str(part) for part in (name, *place))
        cause = item.get("ctx", {}).get("error")
        if of_union and problems[-1:] and problems[-1][0].partition(".")[0] == name:
            problems[-1] = (problems[-1][0], f"{item['msg']}; or {problems[-1][1]}")
        elif isinstance(cause, InvalidFields):
            problems += [
                (".".join(filter(None, (path, inner))), text) for inner, text in cause.problems
            ]
        elif isinstance(cause, ConfigError):
            problems.append((path, cause.message))
        elif item["type"] == "extra_forbidden":
            problems.append((path, UnknownKey.among(str(item["loc"][-1]), model.keys())))
        elif item["type"] == "model_type":
            expected = "expected a mapping of settings, as in {name: value}"
            problems.append((path, f"{expected}, got {item['input']!r}"))
        elif item["type"] == "missing":
            problems.append((path, "is required"))
        elif item["type"] == "literal_error":
            literals = re.findall(r"'([^']*)'", item.get("ctx", {}).get("expected", ""))
            advice = nearest(str(item["input"]), literals, spell_out=False) if literals else ""
            problems.append(
                (path, f"{item['msg']}, got {item['input']!r}{advice and '.' + advice}")
            )
        else:
            message = item["msg"].replace("a valid tuple", "a list in brackets")
            problems.append((path, f"{message}, got {item['input']!r}"))
    return problems
