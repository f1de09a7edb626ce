"""Calls of tools in what a policy writes."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from benchmarks.embedded_policy import build_tokenizer
from chats import TOOLS, chat_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import get_json_schema

from rlobj.base.errors import ConfigError
from rlobj.conversations import CallReader, Rendering
from rlobj.data import Chat


def reader(name: str, calls: str = "auto", response_template: Any = None, tools: Any = TOOLS):
    tokenizer = chat_tokenizer(name)
    if response_template is not None:
        tokenizer.response_template = response_template
    return CallReader(Rendering(tokenizer, Chat(), tools), calls)


def read(found: CallReader, text: str) -> list[Any]:
    """(name, arguments) of each call, and the error of a malformed one."""
    calls = found.read(found._tokenizer(text, add_special_tokens=False)["input_ids"])
    assert all(each["type"] == "function" for each in calls)
    assert json.loads(json.dumps(calls)) == calls
    return [
        each.get("error") or (each["function"]["name"], each["function"]["arguments"])
        for each in calls
    ]


QWEN_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*",
            "close_pattern": r"\s*</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


@pytest.mark.parametrize(
    ("name", "template", "expected"),
    [
        ("qwen3", None, "hermes"),
        ("llama3_1", None, "llama3"),
        ("qwen3", QWEN_TEMPLATE, "template"),
    ],
)
def test_the_format_is_the_one_that_the_chat_template_writes(name, template, expected):
    assert reader(name, response_template=template).format == expected


def test_a_format_that_nothing_shows_is_asked_for():
    advice = r"environment\.calls=%s, but .*'%s' .* Use environment\.calls=hermes or"
    with pytest.raises(ConfigError, match=advice % ("auto", "qwen3_5_think")):
        reader("qwen3_5_think")
    assert reader("qwen3_5_think", "hermes").format == "hermes"
    with pytest.raises(ConfigError, match=advice % ("template", "qwen3")):
        reader("qwen3", "template")
    without = Rendering(build_tokenizer(), None, TOOLS)
    with pytest.raises(ConfigError, match=advice % ("auto", "")):
        CallReader(without)
    assert CallReader(without, "hermes").format == "hermes"


HERMES = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "%s"}}\n</tool_call>'
LLAMA = '{"name": "calculator", "parameters": {"expression": "37*46"}}'
CALL = ("calculator", {"expression": "37*46"})


@pytest.mark.parametrize("template", [None, QWEN_TEMPLATE])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is 1702.<|im_end|>", []),
        (HERMES % "37*46" + "<|im_end|>", [CALL]),
        (
            "I compute." + HERMES % "37*46" + "\n" + HERMES % "1",
            [CALL, (CALL[0], {"expression": "1"})],
        ),
        ("<think>" + HERMES % "1" + "</think>" + HERMES % "37*46", [CALL]),
        (HERMES % "<|im_end|>", [("calculator", {"expression": "<|im_end|>"})]),
    ],
)
def test_calls_between_tags(template, text, expected):
    assert read(reader("qwen3", response_template=template), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LLAMA + "<|eot_id|>", [CALL]),
        ("<|python_tag|>" + LLAMA + "<|eom_id|>", [CALL]),
        ("\n" + LLAMA, [CALL]),
        ("The set {1, 2}<|eot_id|>", []),
        ('{"answer": 4}', []),
        ("so " + LLAMA, []),
    ],
)
def test_the_call_of_a_whole_turn(text, expected):
    assert read(reader("llama3_1"), text) == expected


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ('{"name": "calculator", "arguments": {', "no call of a tool: Expecting"),
        ('{"name": "calculator"}', "expected {"),
        ('{"name": "calculater", "arguments": {}}', "Did you mean 'calculator'?"),
        ('{"name": "calculator", "arguments": {}}', "'expression' is a required property"),
        (
            '{"name": "calculator", "arguments": {"expression": "1", "digit": 2}}',
            "arguments: Additional properties are not allowed ('digit' was unexpected)",
        ),
        (
            '{"name": "calculator", "arguments": {"expression": 12}}',
            "arguments.expression: 12 is not of type 'string'",
        ),
        ('{"name": "calculator", "arguments": {"expression": "1", "digits": NaN}}', "JSON"),
        ('{"name": "calculator", "arguments": {"expression": "\\ud800"}}', "surrogates"),
        ('{"name": "calculator", "arguments": {"expression": ' + "[" * 99999, "nested too deeply"),
    ],
)
def test_a_malformed_call_is_an_answer_to_the_policy(call, reason):
    found = reader("qwen3")
    good = HERMES % "37*46"
    one, other = read(found, f"<tool_call>{call}</tool_call>{good}")
    assert reason in one
    assert len(one) < 1000
    assert other == CALL
    llama = read(reader("llama3_1"), "<|python_tag|>" + call)
    assert reason in llama[0]


def typed(
    word: str,
    number: float,
    kind: Literal["a", "b"],
    rows: list[int],
    either: int | str = 1,
    maybe: int | None = None,
    anything: Any = None,
    table: dict[str, float] | None = None,
) -> str:
    """Every type.

    Args:
        word: a
        number: b
        kind: c
        rows: d
        either: e
        maybe: f
        anything: g
        table: h
    """
    return ""


GOOD = {"word": "w", "number": 1, "kind": "a", "rows": [1, 2]}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, None),
        ({"number": 1.5, "either": "x", "maybe": None, "anything": [{}], "table": {"a": 1}}, None),
        ({"number": True}, "number: "),
        ({"kind": "c"}, "kind: "),
        ({"rows": [1, "2"]}, "rows[1]: "),
        ({"rows": [1.0]}, "rows[0]: "),
        ({"either": 1.5}, "either: "),
        ({"maybe": "1"}, "maybe: "),
        ({"table": []}, "table: "),
        ({"table": {"a": "1"}}, "table.a: "),
    ],
)
def test_arguments_have_the_types_of_the_function(changed, wrong):
    found = reader("qwen3", tools=[get_json_schema(typed)])
    call = json.dumps({"name": "typed", "arguments": {**GOOD, **changed}})
    (one,) = read(found, f"<tool_call>{call}</tool_call>")
    expected = ("typed", {**GOOD, **changed}) if wrong is None else f"arguments.{wrong}"
    assert one == expected if wrong is None else one.startswith(expected)


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>", "<|python_tag|>"),
        *('{"name":', '"calculator"', ',"arguments":', '"parameters":', '"expression":', '{"name"'),
        *("{", "}", "[", "]", "NaN", "1e999", "null", '"x"', "\\ud800"),
    ]
)
READERS = [
    reader("qwen3"),
    reader("llama3_1"),
    reader("qwen3", response_template=QWEN_TEMPLATE),
]


@given(st.sampled_from(READERS), st.lists(PIECES | st.text(max_size=4), max_size=14).map("".join))
def test_no_text_is_an_exception(found, text):
    read(found, text.encode("utf-8", "replace").decode())
