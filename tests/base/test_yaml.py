"""YAML that a stranger has written: it may cost little time and little memory."""

from __future__ import annotations

import pytest
from limits import within

from rlobj.base.yaml import load_yaml


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
    "many numbers with the base 60": ("a: " + ":".join(["59"] * 50_000), "digits"),
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
    text = "a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\nd: 0x1f\ne: 1_000"
    x = {"x": 1}
    assert load_yaml(text) == {"a": x, "b": [x, x], "c": {"x": 1, "y": 2}, "d": 31, "e": 1000}
