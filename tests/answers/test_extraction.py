import json
import time
from pathlib import Path

import pytest

from rlobj.answers.equivalence import MAX_DEPTH, MAX_LENGTH, check_equivalence, decide
from rlobj.answers.extraction import extract_answer


def extracted():
    """The rows of `extracted.jsonl`: the kind, a response, and its answer or null."""
    text = Path(__file__).with_name("extracted.jsonl").read_text(encoding="utf-8")
    rows = map(json.loads, text.splitlines())
    return [pytest.param(*row, id=f"{kind}: {row[0][:40]!r}") for kind, *row in rows]


@pytest.mark.parametrize(("response", "answer"), extracted())
def test_the_answer_of_a_response(response, answer):
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    "piece",
    [r"\boxed{", "{", "}", "<think>", "</think>", "answer is ", "$", "a", "#### ", "\\", " ", "\n"],
)
def test_extraction_takes_linear_time(piece):
    text = piece * (400_000 // len(piece))
    started = time.process_time()
    extract_answer(text)
    extract_answer(f"The answer is {text} 5")
    assert time.process_time() - started < 3


@pytest.mark.parametrize(
    ("answer", "gold", "correct"),
    [
        ("12", "12", True),
        ("012", "12", True),
        ("+5", "5", True),
        ("-0", "0", True),
        ("-5", "5", False),
        ("1,234", "1234", True),
        (r"1{,}234", "1234", True),
        (r"1\,234", "1234", True),
        ("9" * 450, "9" * 449 + "8", False),
        (r"\text{Evelyn}", r"\text{Evelyn}", True),
    ],
)
def test_equal_text_and_integers_are_decided_by_the_guards(answer, gold, correct):
    verdict = decide(answer, gold)
    assert verdict is not None
    assert verdict[0] is correct


@pytest.mark.parametrize("answer", ["1 2", "1,2", r"1\,2", "12,34", "1_2", "2^{10}", "5.0", "१२"])
def test_other_forms_of_integers_are_left_to_the_parser(answer):
    assert decide(answer, "12") is None


@pytest.mark.parametrize(
    "answer",
    [
        "1 or " * MAX_LENGTH + "1",
        "(" * (MAX_DEPTH + 1) + "5" + ")" * (MAX_DEPTH + 1),
        r"\frac{1}{2",
        "1" + "{" * 20 + "}" * 19,
    ],
)
def test_an_answer_beyond_a_limit_is_wrong_and_the_reason_says_which(answer):
    verdict = decide(answer, "5")
    assert verdict is not None
    assert verdict[0] is False
    assert verdict[1].startswith("too large: ")
    assert decide(answer + "0", answer) is None  # the gold answer is as large


@pytest.mark.parametrize(
    "bomb",
    [
        "9^9^9^9",
        "9^{9^{9}}",
        "10^{999999999}",
        r"1.5 \cdot 10^{-999999999}",
        "1000000000!",
        "((9!)!)!",
        r"\binom{10000000}{5000000}",
        r"\frac{2^{10^9}}{2^{10^9}-1}",
        r"\prod_{k=1}^{10000000} k",
    ],
)
def test_a_value_that_is_too_large_to_evaluate_is_wrong(bomb, verifier):
    verdict = verifier.compare(bomb, "5")
    assert (verdict.correct, verdict.reason) == (False, "not settled")


@pytest.mark.parametrize(
    "answer",
    [
        "5 5",
        "5 +",
        "= =",
        "((5",
        "5 // 1.5",
        "?",
        "5 banana 6",
        r"\text{the grader should accept}",
        "__import__('os')",
        "`5`; rm",
        r"\loop\iftrue\repeat",
        r"\Re(12)",
        r"52_8 + 1",
        r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}",
        r"1 + 2 + \cdots + 9",
    ],
)
def test_prose_garbage_and_mathematics_that_cannot_be_read_are_wrong(answer):
    correct, reason = check_equivalence(answer, "5")
    assert correct is False
    assert reason.startswith(("not an answer", "not readable: "))
