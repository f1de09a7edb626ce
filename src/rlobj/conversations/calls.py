"""Find the calls of tools in what the policy writes.

    template  what the tokenizer's `response_template` finds (transformers)
    hermes    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>, any number of them
    llama3    {"name": "add", "parameters": {"a": 1}}, a whole turn, perhaps after <|python_tag|>

A malformed call is no exception, but an answer to the policy.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft4Validator, Draft202012Validator, ValidationError
from jsonschema.validators import extend

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.files import parse_json
from rlobj.base.showing import shown
from rlobj.conversations.rendering import Rendering

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
        tools = [tool["function"] for tool in rendering.tools]
        self._checks = {
            tool["name"]: _VALIDATOR({"additionalProperties": False, **tool["parameters"]})
            for tool in tools
        }
        formats: dict[str, Callable[[str], list[Any]]] = {"hermes": _hermes, "llama3": _llama3}
        if getattr(self._tokenizer, "response_template", None) is not None:
            formats = {"template": self._template, **formats}
        self._before, name = "", next(iter(self._checks), "tool")
        if rendering.chat is not None:
            self._before, turn = rendering.example(name, {"x": "one"})
            if calls == "auto":
                expected = [{"name": name, "arguments": {"x": "one"}}]
                fitting = (f for f, find in formats.items() if self._calls(find, turn) == expected)
                calls = next(fitting, calls)
        if calls not in formats:
            raise ConfigError(
                f"environment.calls={calls}, but the tokenizer of '{self._tokenizer.name_or_path}' "
                "has no response_template, and its chat template shows no such calls. Use "
                "environment.calls=hermes or environment.calls=llama3"
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
            if call["name"] in self._checks:
                name, arguments = call["name"], call["arguments"]
                wrong = next(self._checks[name].iter_errors(arguments), None)
                error = shown(wrong, _mistake) if wrong else ""
            else:
                error = f"there is no tool {shown(call['name'])}."
                error += nearest(call["name"][:64], self._checks)
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
    body = re.match(r'\s*(?:<\|python_tag\|>|(?=\{\s*"name"))(.*)', text, re.S)
    return [_call(re.sub(r"(?:<\|[^|]*\|>\s*)+\Z", "", body[1]))] if body else []


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


def _mistake(wrong: ValidationError) -> str:
    return f"arguments{wrong.json_path[1:]}: {wrong.message}"


def _type(validator: Any, kinds: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """The keyword `type` of JSON Schema, with `nullable` of transformers' `get_json_schema`."""
    if value is not None or not schema.get("nullable"):
        yield from Draft202012Validator.VALIDATORS["type"](validator, kinds, value, schema)


_VALIDATOR: Any = extend(
    Draft202012Validator, {"type": _type}, type_checker=Draft4Validator.TYPE_CHECKER
)
"""Checks arguments. In Draft 4, 1.0 is no integer, as in Python."""
