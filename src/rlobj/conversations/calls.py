"""Find the calls of tools in what the policy writes.

    template  what the tokenizer's `response_template` finds (transformers)
    hermes    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>, any number of them
    llama3    {"name": "add", "parameters": {"a": 1}}, a whole turn, perhaps after <|python_tag|>

A malformed call is no exception, but an answer to the policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlobj.base.errors import ConfigError, Setting, nearest
from rlobj.base.files import parse_json
from rlobj.base.showing import shown
from rlobj.conversations.rendering import Rendering

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
_DEPTH = 32
"""Lists and objects in one another, in the arguments of a call."""


class CallReader:
    """Finds the calls of tools in turns of the policy.

    Args:
        rendering: has the tokenizer and the tools' JSON schemas.
        calls: how the policy writes calls. "auto" = the first of `template`, `hermes` and `llama3`
            that finds the call which the chat template writes.

    Raises:
        ConfigError: no format is found, or the tokenizer has no `response_template`.
    """

    def __init__(self, rendering: Rendering, calls: str = "auto") -> None:
        self._tokenizer, self._tools = rendering.tokenizer, rendering.tools
        self._schemas = {tool["function"]["name"]: tool["function"] for tool in rendering.tools}
        formats: dict[str, Callable[[str], list[Any]]] = {"hermes": _hermes, "llama3": _llama3}
        if getattr(self._tokenizer, "response_template", None) is not None:
            formats = {"template": self._template, **formats}
        self._before, name = "", next(iter(self._schemas), "tool")
        if rendering.chat is not None:
            self._before, turn = rendering.example(name, {"x": "one"})
            if calls == "auto":
                expected = [{"name": name, "arguments": {"x": "one"}}]
                fitting = (f for f, find in formats.items() if self._calls(find, turn) == expected)
                calls = next(fitting, calls)
        if calls not in formats:
            raise ConfigError(
                f"environment.calls={calls}, but the tokenizer of '{self._tokenizer.name_or_path}' "
                "has no response_template, or its chat template writes calls in another format. "
                "Use ",
                Setting("environment.calls", "hermes"),
                " or ",
                Setting("environment.calls", "llama3"),
                ", or give it a response_template",
            )
        self.format = calls
        self._find = formats[calls]

    def read(self, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """The calls in a turn of the policy, as chat templates read them in `tool_calls`.

        Args:
            tokens: the token ids of the turn.

        Returns:
            `{"type": "function", "function": {"name": ..., "arguments": {...}}}` each, with the key
            "error" if the call is malformed: what is wrong, for the policy.
        """
        text = self._tokenizer.decode([*tokens], clean_up_tokenization_spaces=False)
        return [self._checked(call) for call in self._calls(self._find, text)]

    def _calls(self, find: Callable[[str], list[Any]], text: str) -> list[Any]:
        try:
            return find(text)
        except Exception as error:  # `response_template` is a program of the model's author
            return [ValueError(shown(error, str))]

    def _template(self, text: str) -> list[Any]:
        said = self._tokenizer.parse_response(text, prefix=self._before, tools=[*self._tools])
        return [call["function"] for call in said.get("tool_calls") or []]

    def _checked(self, call: Any) -> dict[str, Any]:
        name, arguments, error = "unknown", {}, ""
        try:
            _require_data(call)
            schema = self._schemas.get(call["name"])
            if schema is None:
                error = f"there is no tool {shown(call['name'])}."
                error += nearest(str(call["name"])[:64], self._schemas)
            else:
                name, arguments = schema["name"], call["arguments"]
                error = _mistake(arguments, schema["parameters"])
        except ValueError as problem:
            error = f"this is no call of a tool: {problem}"
        function = {"name": name, "arguments": {} if error else arguments}
        return {"type": "function", "function": function} | ({"error": error} if error else {})


def _hermes(text: str) -> list[Any]:
    """The calls in Hermes' format, outside of <think>."""
    said = text.rpartition("</think>")[2].partition("<think>")[0]
    return [_call(call) for call in re.findall(r"<tool_call>(.*?)(?:</tool_call>|\Z)", said, re.S)]


def _llama3(text: str) -> list[Any]:
    """The call in Llama's format: a turn that begins with its JSON, or with <|python_tag|>."""
    beginning = re.match(r"\s*(<\|python_tag\|>)?\s*(?=(\{\s*\"name\")?)", text)
    assert beginning is not None
    if not beginning[1] and not beginning[2]:
        return []
    return [_call(re.sub(r"(?:<\|[^|]*\|>\s*)+\Z", "", text[beginning.end() :]))]


def _call(text: str) -> Any:
    """The name and the arguments of a call that is JSON; an error if it is none."""
    try:
        call = parse_json(text)
    except ValueError as error:
        return error
    if isinstance(call, dict) and "parameters" in call and "arguments" not in call:
        return {"name": call.get("name"), "arguments": call["parameters"]}
    return call


def _require_data(call: Any) -> None:
    """Check that a call has a name and arguments that are JSON.

    Raises:
        ValueError: it does not.
    """
    if isinstance(call, ValueError):
        raise call
    named = isinstance(call, Mapping) and isinstance(call.get("name"), str)
    if not named or not isinstance(call.get("arguments"), dict):
        raise ValueError('expected {"name": a text, "arguments": an object}')
    if _deep(call["arguments"], _DEPTH):
        raise ValueError("the arguments are nested too deeply")
    json.dumps(call, allow_nan=False, ensure_ascii=False).encode()  # NaN, and half characters


def _deep(value: Any, most: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not most or any(_deep(part, most - 1) for part in inner)


def _mistake(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What is wrong with arguments; "" = nothing."""
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in arguments:
            return f"the argument {name!r} is missing"
    for name, value in arguments.items():
        if name not in properties:
            return f"there is no argument {shown(name)}.{nearest(name[:64], properties)}"
        if not _fits(value, wanted := properties[name]):
            hints = ("type", "enum", "items", "anyOf", "nullable")
            kind = json.dumps({key: wanted[key] for key in hints if key in wanted})
            return f"the argument {name!r} is {shown(value, json.dumps)}; expected {kind}"
    return ""


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether JSON fits a schema of transformers' `get_json_schema`."""
    if value is None and schema.get("nullable"):
        return True
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    right = any(
        isinstance(value, _TYPES.get(kind, object))
        and (kind not in ("integer", "number") or not isinstance(value, bool))
        for kind in kinds
    )
    other = schema.get("anyOf", ())
    return (
        (right or not kinds)
        and (not other or any(_fits(value, option) for option in other))
        and ("enum" not in schema or value in schema["enum"])
        and (not isinstance(value, list) or all(_fits(v, schema.get("items", {})) for v in value))
    )
