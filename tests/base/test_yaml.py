"""YAML that a stranger has written: it may cost little time and little memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import within

from rlobj.base.yaml import dump_yaml, load_yaml
from rlobj.settings.layers import parse_setting


def laughs(first: str, more: str) -> str:
    """Ten levels of aliases, each nine times the one below."""
    lines = [f"a{i}: &a{i} " + more.format(", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 11)]
    return "\n".join([f"a0: &a0 {first}", *lines])


BOMBS = {
    "aliases in lists": (laughs("[x]", "[{}]"), "more than 20,000 values"),
    "aliases in merges": (laughs("{x: 1}", "{{<<: [{}]}}"), "more than 20,000 values"),
    "a long text, repeated": (
        f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 500)}]",
        "more than 20,000 values",
    ),
    "a list in itself": ("a: &a [1, *a]", "more than 20,000 values"),
    "deep lists": ("[" * 100_000, "maximum depth"),
    "deep blocks": ("".join(f"{' ' * i}a:\n" for i in range(500)), "maximum depth"),
    "many digits": ("a: " + "1" * 50_000, "more than 40 digits"),
    "many hexadecimal digits": ("a: 0x" + "f" * 50_000, "more than 40 digits"),
    "a long text": ("a: " + "x" * 300_000, "more than 262,144 characters"),
    "many keys": ("".join(f"k{i}: 1\n" for i in range(15_000)), "more than 20,000 values"),
    "a tag on another value": ("a: !!bool x", "x"),
    "a tag of Python": ("a: !!python/object/apply:os.getcwd []", "python/object"),
    "a key twice": ("a: 1\nb: 2\na: 3", "the key 'a' is given twice(?s:.)*line 3, column 1"),
    "a number as key": ("0.5: a", "a key must be text"),
    "a text with a comma": ("a: {b, 1}", "a key must be text"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_yaml_bomb_is_refused_at_once(name: str) -> None:
    text, expected = BOMBS[name]
    with within(20, 1 << 30), pytest.raises(ValueError, match=expected):
        load_yaml(text)


def test_aliases_that_repeat_little_are_read() -> None:
    text = "a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\nd: 0x1f\n"
    x = {"x": 1}
    assert load_yaml(text) == {"a": x, "b": [x, x], "c": {"x": 1, "y": 2}, "d": 31}


def test_a_whole_number_as_key_is_its_text() -> None:
    assert load_yaml("a: {1: b, 02: 3}") == {"a": {"1": "b", "02": 3}}


PLAIN = {
    **{"0": 0, "010": 10, "-08": -8, "+12": 12, "0o10": 8, "0x1F": 31},
    **{"1e3": 1e3, "1E-6": 1e-6, ".5": 0.5, "5.": 5.0, "-1.e+2": -100.0, "010.5": 10.5},
    **{".inf": math.inf, "-.INF": -math.inf, "True": True, "FALSE": False},
    **{"null": None, "~": None, "": None},
    **{x: x for x in ("1:30", "0o8", "1e", "1.2.3", ".", "nan", "inf", "1,000", "2020-01-01")},
    **{x: x for x in ("yes", "No", "on", "OFF", "y", "=", "tRUE", "nUll")},
}
"""A plain scalar, and what YAML 1.2 reads."""


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_scalar_is_read_by_yaml_1_2(text: str) -> None:
    expected = PLAIN[text]
    for read in (load_yaml(f"a: {text}")["a"], parse_setting(f"a={text}")["a"]):
        assert (type(read), read) == (type(expected), expected) or text == ""
    assert load_yaml(f"a: '{text}'") == parse_setting(f"a='{text}'") == {"a": text}


NUMBERS = st.from_regex(r"\A[-+]?(0[xob]?)?[0-9a-f_:.]{0,8}([eE][-+]?[0-9]{1,3})?\Z")
TEXTS = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | NUMBERS
    | st.sampled_from(
        [*PLAIN, "<<", "-", "? a", "# a", " a ", "a: b", "{a}", "[", "*a", "&a", "!a"]
    )
    | st.text(st.sampled_from("a \n\t\r\x85\u2028\ufeff'\"\\:#-"), max_size=20)
)
SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False)
VALUES = st.recursive(
    TEXTS | SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([True, False, None]), st.sampled_from([80, 10**6]))
def test_a_value_that_is_written_is_read_again(value, flow, width):
    read = load_yaml(dump_yaml({"a": value}, flow=flow, width=width))["a"]
    assert repr(read) == repr(value)  # 1, 1.0 and True are equal in Python


def test_a_text_with_line_breaks_is_written_on_one_line() -> None:
    assert dump_yaml({"template": "1 + 2 = 3\n{prompt} ="}) == (
        'template: "1 + 2 = 3\\n{prompt} ="\n'
    )
