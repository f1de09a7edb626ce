"""The judge of a scratchpad, against all valid derivations and all alignments of small texts."""

from __future__ import annotations

import itertools
import random
import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlobj.data.scratchpad import _departures, judge


def marked(numbers, response):
    """The response with its spurious characters in brackets."""
    marks = judge("+".join(map(str, numbers)) + "=", response)
    return "".join(f"[{c}]" if mark else c for c, mark in zip(response, marks, strict=True))


def derivations(numbers):
    """Every valid derivation, from the definition: add any two of the numbers that are left."""
    if len(numbers) == 1:
        return {f"#{numbers[0]}"}
    found = set()
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [number for k, number in enumerate(numbers) if k not in (i, j)]
        total = numbers[i] + numbers[j]
        for tail in derivations([total, *rest]):
            found.add(f"{numbers[i]}+{numbers[j]}={total}{';' * bool(rest)}{tail}")
    return found


@cache
def alignments(expected, written):
    """(edits, marks) of every alignment with the fewest edits, by trying all."""
    if not expected and not written:
        return 0, {()}
    options = []
    if expected and written:
        wrong = expected[0] != written[0]
        edits, tails = alignments(expected[1:], written[1:])
        options.append((edits + wrong, {(wrong, *tail) for tail in tails}))
    if written:
        edits, tails = alignments(expected, written[1:])
        options.append((edits + 1, {(True, *tail) for tail in tails}))
    if expected:  # a missing character marks the next written one
        edits, tails = alignments(expected[1:], written)
        options.append((edits + 1, {(True, *tail[1:]) if tail else () for tail in tails}))
    fewest = min(edits for edits, _ in options)
    return fewest, set().union(*(marks for edits, marks in options if edits == fewest))


def some_sums(operands, count, seed=0):
    draw = random.Random(seed)
    return [[draw.randrange(10) for _ in range(operands)] for _ in range(count)]


@pytest.mark.parametrize(
    "response",
    [
        "[2]+6=12;12+4=16;[2]6+9=25#25",  # the scratchpads of the issue
        "6+6=12;1[4]+4=16;16+9=25#25",
        "6+6=1[3];12+4=16;16+9=25#25",  # a wrong sum, and the right one is used
        "6+[4]=1[0];12+4=16;16+9=25#25",  # a step that is valid, but is not followed
        "6[x]+6=12;12+[q]4=16;16+9=25#25",
        "4+9=13;6+6=12;12+13=25#25",  # another order
        "4+9=13;6+6=1[0];12+13=25#25",  # another order with a wrong digit
        "4[z]+9=13;6+6=12;12+13=25#25",
        "6+6=12[#]25",  # steps are missing
        "[#]25",
        "6+6=12[1]2+4=16;16+9=25#25",  # one sign is missing
        "6+6=12[2];12+4=16;[2]6+9=25[5]#25",  # the second of two is too much
        "6+6=12;12+4=16;16+9=25[;][2][5][+][0][=][2][5]#25",
        "6+[;]6=12;12+4=16;16+9=25#25",
    ],
)
def test_the_tokens_that_depart_are_marked_and_no_other(response):
    assert marked([6, 6, 4, 9], response.replace("[", "").replace("]", "")) == response


def test_every_valid_derivation_has_no_spurious_token():
    for numbers in [*itertools.product(range(10), repeat=2), *some_sums(3, 20), *some_sums(4, 6)]:
        for response in derivations(list(numbers)):
            assert marked(numbers, response) == response


@pytest.mark.parametrize("numbers", [[3, 8], *some_sums(3, 2), *some_sums(4, 1)])
def test_only_valid_derivations_have_no_spurious_token(numbers):
    valid = derivations(numbers)
    for response in random.Random(0).sample(sorted(valid), min(len(valid), 2)):
        for i, new in itertools.product(range(len(response)), "0159+=;#a"):
            for changed in (
                response[:i] + new + response[i + 1 :],
                response[:i] + new + response[i:],
                response[:i] + response[i + 1 :],
            ):
                tokens = [*changed, ""]
                marks = judge("+".join(map(str, numbers)), tokens)
                assert any(marks) == (changed not in valid), (numbers, changed)


@given(st.text("12+;", max_size=6), st.text("12+;", max_size=6))
def test_the_alignment_is_one_of_those_with_the_fewest_edits(expected, written):
    marks = _departures(expected + ".", written + ".")
    assert tuple(marks) in alignments(expected + ".", written + ".")[1]


@pytest.mark.parametrize(
    ("prompt", "tokens", "spurious"),
    [
        ("6+9+3+8=", ["6+9=", "15", ";", "14", "+3=18", ";18+8=26", "#26", ""], [3]),
        ("6+6=", ["6+", "", "6=12#12", ""], [1]),  # a special token inside
        ("6+6=", [*"6+6=12#1", ""], [8]),  # an end before the answer is complete
        ("6+6=", [*"6+6=12#12", ""], []),
        ("6+6=", [*"6+6=12#12"], []),  # cut
        ("6+6=", [], []),
    ],
)
def test_tokens_of_any_number_of_characters_are_judged(prompt, tokens, spurious):
    assert [place for place, mark in enumerate(judge(prompt, tokens)) if mark] == spurious


def test_the_sum_is_found_in_a_longer_prompt_and_its_absence_is_an_error():
    assert marked([6, 6], "6+6=1[3]#12".replace("[", "").replace("]", "")) == "6+6=1[3]#12"
    assert not any(judge("Question 7: 6+6=? Steps, then # and the sum.", "6+6=12#12"))
    with pytest.raises(ValueError, match="'Hello' has no sum"):
        judge("Hello", "6+6=12#12")


def test_the_time_is_proportional_to_the_length():
    def seconds(length):
        times = []
        for _ in range(3):
            start = time.process_time()
            judge("3+4+8+5=", "z;" * length + "#20")
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(2_000) < 8 * seconds(500)  # a quadratic one takes 16 times as long
