"""Tokenizers of a policy and a teacher: what differs, and the end token."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.embedded_policy import build_tokenizer

from rlobj.models.embedded import ALPHABET
from rlobj.models.scores import tokenizer_difference, with_end


def ending(token: str) -> Any:
    tokenizer = build_tokenizer()
    tokenizer.eos_token = token
    return tokenizer


SWAPPED, SHORT, LONG = ALPHABET.replace("89", "98"), ALPHABET[:-1], f"{ALPHABET};#"


@pytest.mark.parametrize(
    ("theirs", "end", "part"),
    [
        (build_tokenizer(), None, None),
        (build_tokenizer(LONG), None, None),
        (build_tokenizer(SWAPPED), None, "id 12 is '8' in the policy's tokenizer and '9' in"),
        (build_tokenizer(SHORT), None, "id 19 is ' ' in the policy's tokenizer and None in"),
        (ending("<unk>"), None, "with id 3: use scores.teacher.end=3"),
        (ending("<unk>"), 3, None),
        (build_tokenizer(), 99, "scores.teacher.end=99 is no token of the teacher"),
    ],
)
def test_the_first_difference_of_two_tokenizers_is_named(theirs, end, part):
    found = tokenizer_difference(build_tokenizer(), theirs, end, "teacher")
    assert found is None if part is None else part in str(found)


def test_the_teachers_end_token_replaces_the_policys():
    assert with_end([5, 2, 6, 2], ours=2, end=3) == [5, 3, 6, 3]
    assert with_end([5, 2], ours=2, end=None) == [5, 2]
