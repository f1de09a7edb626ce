"""Models that report every mistake at once, each with its path and the nearest name."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rlobj.errors import ConfigError, nearest

__all__ = ["InvalidFields", "Model"]


class InvalidFields(ConfigError):
    """All the mistakes in one model, as (path, message) pairs."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{path}: {text}" if path else text for path, text in problems))


class Model(BaseModel):
    """A frozen pydantic model that refuses unknown keys and raises `InvalidFields`."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InvalidFields(_problems(error, type(self))) from None

    @classmethod
    def keys(cls) -> list[str]:
        """The names that a user writes: aliases where there are any."""
        return [field.alias or name for name, field in cls.model_fields.items()]


def _problems(error: ValidationError, model: type[Model]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, InvalidFields):
            found += [
                (".".join(filter(None, (path, inner))), text) for inner, text in cause.problems
            ]
        elif isinstance(cause, ConfigError):
            found.append((path, str(cause)))
        elif item["type"] == "extra_forbidden":
            found.append((path, f"unknown key.{nearest(str(item['loc'][-1]), model.keys())}"))
        elif item["type"] == "missing":
            found.append((path, "is required"))
        elif item["type"] == "literal_error":
            known = re.findall(r"'([^']*)'", item.get("ctx", {}).get("expected", ""))
            advice = nearest(str(item["input"]), known, spell_out=False) if known else ""
            found.append((path, f"{item['msg']}, got {item['input']!r}.{advice}"))
        else:
            found.append((path, f"{item['msg']}, got {item['input']!r}"))
    return found
