"""Equal and unequal answers for gold answers, by kind: the rows of `equivalences.yaml`."""

import contextlib
import time
from pathlib import Path

import pytest

from rlobj.answers.equivalence import check_equivalence
from rlobj.answers.lexer import Unreadable, normalize
from rlobj.answers.structure_parser import parse_structure
from rlobj.base.yaml import load_yaml

FILE = Path(__file__).with_name("equivalences.yaml")
ROWS = load_yaml(FILE.read_text(encoding="utf-8"))
POLICY = Path(__file__).parents[2] / "docs" / "verifier-policy.yaml"


def policies():
    """The examples of the table of policies in docs/verifier.md."""
    for row in load_yaml(POLICY.read_text(encoding="utf-8")):
        assert row["right"], row
        assert row["wrong"], row
        for expected, answers in ((True, row["right"]), (False, row["wrong"])):
            yield from ((answer, row["gold"], expected) for answer in answers)


def pairs(rows):
    for row in rows.strip().splitlines():
        gold, _, answers = row.strip().partition(": ")
        right, _, wrong = answers.partition(" | ")
        for expected, given in ((True, right), (False, wrong)):
            for answer in given.split(" ; "):
                yield answer.replace(r"\u200b", "\u200b"), gold, expected


def as_expected(verdict, expected):
    if expected is False and verdict.correct is None:  # beyond the parser or a limit
        return verdict.reason.startswith(("not readable: ", "too large: "))
    return verdict.correct is expected


@pytest.mark.parametrize("kind", [*ROWS, "page"])
def test_verdicts_of_the_tables_and_of_the_documented_policies(verifier, kind):
    other = {}
    for answer, gold, expected in policies() if kind == "page" else pairs(ROWS[kind]):
        verdict = verifier.verify(f"So it is \\boxed{{{answer}}}.", gold)
        if not as_expected(verdict, expected):
            other[answer, gold] = verdict
    assert other == {}


@pytest.mark.parametrize("gold", [r"t(0,4]", r"\frac{", r"\sqrt", r"((9!)!)!", r"6 \pmod{7}"])
def test_unreadable_gold_is_undecided_unless_the_texts_are_equal(gold):
    assert check_equivalence("7", gold)[0] is None
    assert check_equivalence(gold, gold)[0] is True


def test_gold_in_prose_is_undecided(verifier):
    gold = "$f(x)=a x+b$ works only if $b$ divides an arbitrary integer and $a$ is its square"
    assert verifier.verify(r"\boxed{ax+b}", gold).correct is None


def test_conditions_behind_a_gold_may_be_left_out(verifier):
    gold = "$f(x)=a x+b$, where $b$ is an arbitrary integer and $a$ is positive"
    assert verifier.verify(r"\boxed{ax+b}", gold).correct is True
    assert verifier.verify(r"\boxed{ax-b}", gold).correct is False


@pytest.mark.parametrize(
    "piece", ["1,", "x=", "(", "[", r"\{", "1+", r"\pm 1", "_", "^", "|", "5;"]
)
def test_parsing_takes_bounded_time(piece):
    started = time.process_time()
    with contextlib.suppress(Unreadable, RecursionError):
        parse_structure(piece * 1000 + "1")
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        "^ " * 100 + r"\mu m",
        r"2^{3}\cdot " * 40 + r"\mu m",
        r"2^{3}\cdot " * 40 + r"L_\odot",
        "^{ - " * 100 + r"M_\odot",
        "{ " * 200 + r"\mu",
    ],
    ids=lambda text: text[:12] + text[-6:],
)
def test_hostile_blanks_and_powers_are_normalized_at_once(text):
    start = time.process_time()
    normalize(text)
    assert time.process_time() - start < 1
