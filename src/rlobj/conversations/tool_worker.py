"""The answers and schemas of tools, and the calls of those that run in a worker process."""

import asyncio
import inspect
import json
import numbers
import resource
from collections.abc import Awaitable, Mapping
from typing import Any

from rlobj.base.errors import ConfigError, reported
from rlobj.base.seeds import seed_generators
from rlobj.base.showing import place_of, place_of_error, shown
from rlobj.base.targets import import_target
from rlobj.conversations import box
from rlobj.conversations.environment import limited_text


def answered(result: Any, most: int) -> list[str]:
    """The text and the kind of error, as in `ToolUse`, of what a tool returned.

    Args:
        result: what it returned.
        most: the largest number of characters of the text.

    Raises:
        TypeError: it is no text, number, list or dict; or JSON cannot hold it.
    """
    if isinstance(result, numbers.Number):
        result = str(result)
    elif isinstance(result, dict | list | tuple):
        result = json.dumps(result, ensure_ascii=False)
    elif not isinstance(result, str):
        kind = type(result).__name__
        raise TypeError(f"the tool returned {kind}; expected a text, number, list or dict")
    return [limited_text(result, most), "flood" if len(result) > most else ""]


def failed(error: BaseException, most: int) -> list[str]:
    """The text and the kind of error of a tool that raised."""
    what = f"{type(error).__name__}: {shown(error, str)}"
    text, why = f"error: {what}", f"exception: {what}{place_of_error(error)}"
    if isinstance(error, box.ToolError):
        text, why = str(error), "error"
    return [limited_text(text, most), why]


def schema_of(function: Any, name: str) -> dict[str, Any]:
    """The JSON schema of a tool, for chat templates.

    Raises:
        ConfigError: the function has no docstring, or not all arguments have a type and a
            description, or it cannot be called with them.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema = get_json_schema(function)
        by_name = dict.fromkeys(schema["function"]["parameters"]["properties"])
        inspect.signature(function, follow_wrapped=False).bind(**by_name)  # of a decorator
    except Exception as error:
        why = str(error.args[0] if error.args else error).rstrip("!. ")
        place = place_of(function) if callable(function) else ""
        raise ConfigError(
            f"tool {name!r} has no schema: {why}. Expected a function with a docstring, and a type "
            f"and a description of each argument{place}"
        ) from error
    schema["function"]["name"] = name
    return schema


class Tools:
    """Tools in a worker process. What they print is not shown.

    Args:
        tools: name -> target.
        describe: whether to make the schemas.
        max_output: the largest number of characters of a text.
        deadline: of a program of `box.python`, in seconds.
        memory: limit on its address space, in bytes.

    Attributes:
        opening: name -> schema, if they are asked for.

    Raises:
        ConfigError: a tool cannot be imported, or has no schema.
    """

    def __init__(
        self,
        tools: Mapping[str, str],
        describe: bool,
        max_output: int,
        deadline: float,
        memory: int,
    ) -> None:
        box.deadline, box.memory, self._most = deadline, memory, max_output
        self._tools, self.opening = dict[str, Any](), dict[str, Any]()
        for name, target in tools.items():
            with reported(ConfigError, f"tool {name!r}", ConfigError):
                self._tools[name] = import_target(target)
        if describe:
            outer = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (outer, outer))  # transformers needs more
            self.opening = {name: schema_of(tool, name) for name, tool in self._tools.items()}

    def answer(self, name: str, arguments: Mapping[str, Any], seed: int) -> list[str]:
        """The text and the kind of error of a call; the seed is that of the global generators."""
        seed_generators(seed)
        try:
            result = self._tools[name](**arguments)
            result = asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
            return answered(result, self._most)
        except BaseException as error:
            return failed(error, self._most)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
