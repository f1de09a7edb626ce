"""YAML that a stranger has written: it may cost little time and little memory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from limits import within

import rlobj
from rlobj.base.yaml import dump_yaml, load_yaml, packaged_table
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
    "a list in itself": ("a: &a [1, *a]", "contains itself"),
    "a mapping in itself": ("a: &a {b: {c: *a}}", "contains itself"),
    "deep lists": ("[" * 100_000, "levels deep"),
    "deep mappings": ("{b: " * 5_000, "levels deep"),
    "deep blocks": ("".join(f"{' ' * i}a:\n" for i in range(500)), "levels deep"),
    "many digits": ("a: " + "1" * 50_000, "digits"),
    "many hexadecimal digits": ("a: 0x" + "f" * 50_000, "digits"),
    "many octal digits": ("a: 0o" + "7" * 50_000, "digits"),
    "many numbers with the base 60": ("a: !!int " + ":".join(["59"] * 50_000), "is no int"),
    "a long text": ("a: " + "x" * 300_000, "more than 262,144 characters"),
    "many keys": ("".join(f"k{i}: 1\n" for i in range(15_000)), "more than 20,000 values"),
    "a tag on another value": ("a: !!bool x", "x"),
    "a tag on no mapping": ("a: !!map 5", "values"),
    "a tag of Python": ("a: !!python/object/apply:os.getcwd []", "python/object"),
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


PLAIN = {
    **{"0": 0, "010": 10, "-08": -8, "+12": 12, "0o10": 8, "0x1F": 31, "0xff": 255},
    **{"1e3": 1e3, "1E-6": 1e-6, ".5": 0.5, "5.": 5.0, "-1.e+2": -100.0, "+.5": 0.5, "010.5": 10.5},
    **{".inf": math.inf, "-.INF": -math.inf, "+.Inf": math.inf},
    **{"true": True, "True": True, "FALSE": False, "null": None, "~": None, "NULL": None, "": None},
    **{x: x for x in ("1:30", "1:30.5", "190:20:30", "1_000", "1_0.5", "0b1", "0o8", "0o", "٣")},
    **{x: x for x in ("-0x1", "+0o7", "0X1", "0O7", "1e", ".e3", "1.2.3", "0x", ".", "+.", "nan")},
    **{x: x for x in ("yes", "No", "on", "OFF", "y", "n", "=", "2020-01-01", "tRUE", "nUll")},
    **{x: x for x in ("inf", ".iNF", "1 000", "1,000")},
}
"""A plain scalar, and what the core schema of YAML 1.2 reads."""


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_scalar_is_read_by_the_core_schema_of_yaml_1_2(text: str) -> None:
    expected = PLAIN[text]
    for found in (load_yaml(f"a: {text}")["a"], parse_setting(f"a={text}")["a"]):
        assert (type(found), found) == (type(expected), expected) or text == ""
    for quoted in (f"'{text}'", f'"{text}"'):
        assert load_yaml(f"a: {quoted}") == {"a": text}
        assert parse_setting(f"a={quoted}") == {"a": text}


@pytest.mark.parametrize("text", ["!!int 1_000", "!!int 3.5", "!!float 1:30", "!!bool yes"])
def test_a_tag_reads_no_more_than_the_core_schema(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no .* of YAML 1\.2"):
        load_yaml(f"a: {text}")


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


@given(VALUES, st.booleans(), st.sampled_from([True, False, None]), st.sampled_from([80, 10**6]))
def test_a_value_that_is_written_is_read_again(value, plain, flow, width):
    written = dump_yaml(
        {"a": value}, allow_unicode=plain, default_flow_style=flow, width=width, sort_keys=False
    )
    found = load_yaml(written)["a"]
    assert found == value
    assert repr(found) == repr(value)  # 1, 1.0 and True are equal in Python


def test_a_text_with_line_breaks_is_written_on_one_line() -> None:
    assert dump_yaml({"template": "1 + 2 = 3\n{prompt} ="}) == (
        'template: "1 + 2 = 3\\n{prompt} ="\n'
    )


def test_the_tables_inside_rlobj_mean_the_same_in_yaml_1_1() -> None:
    """Those of folders whose import brings no other engine."""
    root = Path(rlobj.__file__).parent
    files = [x for x in root.rglob("*.yaml") if not {"integrations", "samplers"} & {*x.parts}]
    assert files
    for file in files:
        package = ".".join(file.parent.relative_to(root.parent).parts)
        read = yaml.load(file.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        assert packaged_table(package, file.name) == read, file
