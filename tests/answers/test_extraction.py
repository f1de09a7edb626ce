import time

import pytest

from rlobj.answers.comparison import check_equivalence
from rlobj.answers.extraction import bare, extract_answer
from rlobj.answers.guards import MAX_DEPTH, MAX_LENGTH, decide, refusal

EXTRACTED: dict[str, list[tuple[str, str | None]]] = {
    "a final answer": [
        (r"So \boxed{5}.", "5"),
        (r"First \boxed{3}. No: \boxed{4}", "4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{7} and \boxed{ }", "7"),
        (r"\boxed{7} and then \boxed{8", "7"),
        (r"\boxed{\boxed{9}}", "9"),
        (r"\boxed{\boxed{9}, 5}", r"\boxed{9}, 5"),
        (r"\boxed{9} \boxed{\text{}} \boxed{~\,}", "9"),
        (r"\\boxed{9}", "9"),
        (r"It is not 3, so \boxed{9}.", "9"),
        (r"\fbox{11}", "11"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{$12$}", "12"),
        (r"a set {1, 2 and \boxed{6}", "6"),
        (r"Answer: 3. But \boxed{2} earlier", "2"),
        ("The answer is 42.", "42"),
        ("the final answer is: $\\frac{3}{4}$, as shown.", r"\frac{3}{4}"),
        ("Answer: 3.14 because it is.", "3.14"),
        ("**Answer:** 17", "17"),
        ("**Answer**: **17**", "17"),
        ("## Final Answer\n\n$$\n x+1 \n$$", "x+1"),
        ("6 * 12 = 72\n#### 72", "72"),
        ("The answer is 1. Wait, the answer is 2.", "2"),
        ("The answer is $1$ or $2$.", "$1$ or $2$"),
        ("The answer is 5, or maybe 6.", "5, or maybe 6"),
        ("The answer is $5$ $6$.", "$5$ $6$"),
        ("The answer is 5, not 6.", "5"),
        ("The answer is 5 ... no, 6", "5 ... no, 6"),
        ("The answers are 1 and 2.", "1 and 2"),
        ("Hence the answer is therefore 5.", "5"),
        ("The answer to the question is 5.", "5"),
        ("Answer: 5<|im_end|>", "5"),
        ("#### $18.90", "$18.90"),
        (r"<think>\boxed{1}</think> The answer is 2.", "2"),
        (r"the prompt opened it. \boxed{1}</think> Done.", "1"),
    ],
    "a corrected answer": [
        ("The answer is 204. Or 205.", None),
        ("The answer is $204$. Or $205$.", None),
        ("The answer is 5. No further step is needed.", "5"),
        ("The answer is $5$. Or so I was told.", "5"),
    ],
    "an answer that is denied in its sentence, or not": [
        (r"It is not hard to see that it is \boxed{5}.", "5"),
        (r"The numbers that are not divisible by 3 are \boxed{5}.", "5"),
        (r"So \boxed{5}, which is not a prime.", "5"),
        (r"So \boxed{5}, and 7 is impossible for odd n.", "5"),
        (r"So \boxed{5}, which is not right.", None),
        (r"So \boxed{5}, but 7 is possible, and that is wrong.", "5"),
        (r"Nobody says that it is \boxed{5}.", None),
        (r"Let us suppose that it is \boxed{5}.", None),
        (r"I am not quite sure, but it is \boxed{5}.", None),
        (r"It is \boxed{5} or so.", None),
        (r"Die Antwort ist nicht \boxed{5}.", None),
    ],
    "a box without braces holds what TeX would box": [
        (r"$\boxed 33$", "3"),
        (r"$\boxed33$", "3"),
        (r"$\fbox 42$", "4"),
        (r"$\boxed 12.5$", "1"),
        (r"$\boxed 2\sqrt3$", None),
        (r"$\boxed 2\frac13$", None),
        (r"$\boxed 2^{10}$", None),
        (r"$\boxed xy$", None),
        (r"$\boxed 5$", "5"),
        (r"$\boxed {33}$", "33"),
        (r"$\boxed~5$.", "5"),
        (r"$\boxed\pi$", r"\pi"),
        (r"$\boxed\frac12$", r"\frac12"),
        (r"$\boxed\frac{20}{3}$", r"\frac{20}{3}"),
    ],
    "an answer after cases": [
        (r"If n is odd, \boxed{6}. If n is even, \boxed{6}.", "6"),
        (r"If n is odd, \boxed{\frac12}. If n is even, \boxed{0.5}.", "0.5"),
        (r"Case 1: n odd. We get \boxed{5}. Case 2: n even. We get 6. Hence \boxed{11}.", "11"),
        (r"Case 1: \boxed{5}. Case 2: \boxed{6}. The total is \boxed{11}.", "11"),
        (r"If n is odd, \boxed{5}. If n is even, 6, for a total of \boxed{11}.", "11"),
        (r"Case 1 gives \boxed{7}. Case 2 gives 5. The minimum is \boxed{5}.", "5"),
        (r"If $x = 2$, then $y = \boxed{4}$. Therefore, the answer is \boxed{6}.", "6"),
        (r"If n were 4, we would get \boxed{5}. But n = 3, so \boxed{6}.", "6"),
        (r"If we sum, \boxed{5}. No, that is wrong. If we multiply, \boxed{6}.", "6"),
        ("We have $f(1) = \\boxed{3}$ if $x = 1$.\n\nNow $f(2) = \\boxed{6}$.", "6"),
        (r"If x is 3, then \boxed{12}.", "12"),
        (r"Given the triangle, the area is \boxed{6}. Given this, the inradius is \boxed{1}.", "1"),
        (r"When $k=2$, we get $a=\boxed{4}$. When all values are added we get \boxed{20}.", "20"),
        (r"Let $n$ be odd. Then \boxed{5}. Let $n$ be even. Then 1. So \boxed{6}.", "6"),
        ("If n is odd, the answer is 5. If n is even, the answer is 6. So the answer is 11.", "11"),
        ("If we ignore order, the answer is 5. But order matters, so the answer is 6.", "6"),
        (r"If $x=1$, \boxed{5}. Wait, if $x=1$ we have \boxed{6}.", "6"),
        (r"<think>If n is odd, \boxed{5}.</think> If n is 4, \boxed{6}.", "6"),
    ],
}
NOT_EXTRACTED = {
    "no final answer": [
        "",
        "I count 12 of them.",
        r"\boxed{}",
        r"\boxed{5",
        r"The answer is \boxed{5",
        r"First \boxed{3}, no: \boxed{4}",
        "The answer is not 5.",
        "I don't think the answer is 5.",
        "The answer isn't 5.",
        "The answer is definitely not 5.",
        "Nobody believes that the answer is 5.",
        "I doubt the answer is 5.",
        "If the answer is 5 we are lost.",
        "Suppose the answer is 5.",
        "The answer is 5? No.",
        r"The answer is not \boxed{5}.",
        r"\boxed{5} is not the answer.",
        r"It isn't \boxed{5}",
        "The answer is $5",
        "... = 12, and hence",
        r"<think>it is \boxed{5}",
        r"<think>a</think> b <think>\boxed{5}",
        r"<thinking>\boxed{5}",
        r"<think>\boxed{4}</think> \boxed{5",
        "#### Step 2\nWe add.",
    ],
    "cases with an answer each": [
        r"If n is odd, \boxed{5}. If n is even, \boxed{6}.",
        r"When $n$ is odd, the answer is \boxed{5}. When $n$ is even, the answer is \boxed{6}.",
        r"For n odd: \boxed{5}; for n even: \boxed{6}",
        "For odd n we get \\boxed{5}.\n\nFor even n we get \\boxed{6}.",
        r"For $n=3$ the answer is \boxed{5}. For $n=4$ the answer is \boxed{6}.",
        r"If $a>0$, then $x=\boxed{5}$. Otherwise, $x=\boxed{6}$.",
        r"If order matters, \boxed{5}. If not, \boxed{6}.",
        r"\boxed{5} if n is odd. \boxed{6} if n is even.",
        r"The answer is \boxed{5} unless n is even. If n is even, it is \boxed{6}.",
        r"Case 1: n odd. Hence \boxed{5}. Case 2: n even. Hence \boxed{6}.",
        "**Case 1.** $n$ is odd. So\n\n\\boxed{5}\n\n**Case 2.** $n$ is even. So\n\n\\boxed{6}",
        r"In the first case, \boxed{5}. In the second case, \boxed{6}.",
        r"If $x>0$, \boxed{5}. If $x=0$, \boxed{6}. If $x<0$, \boxed{7}.",
        r"It is \boxed{5} if so. On the other hand, if not, it is \boxed{6}.",
        "If $n$ is odd:\n$$\\boxed{5}$$\n\nIf $n$ is even:\n$$\\boxed{6}$$",
        "1. n odd: \\boxed{5}\n2. n even: \\boxed{6}",
        r"Scenario 1: \boxed{5}. Scenario 2: \boxed{6}.",
        r"If n is odd, the answer is \boxed{5}. If n is even, the maximum is \boxed{6}.",
        r"When $x>0$ the answer is \boxed{5}. When $x<0$ the answer is \boxed{6}.",
        r"Under the first interpretation, \boxed{5}. Under the second interpretation, \boxed{6}.",
        r"Let $n$ be odd. Then \boxed{5}. Let $n$ be even. Then \boxed{6}.",
        r"Given that n is odd, it is \boxed{5}. Given that n is even, it is \boxed{6}.",
        r"As long as n is odd, \boxed{5}. As long as n is even, \boxed{6}.",
        r"\boxed{5} (n odd). \boxed{6} (n even).",
        r"Option 1: \boxed{5}. Option 2: \boxed{6}.",
        "If n is odd, the answer is 5. If n is even, the answer is 6.",
        "Case 1: n is odd.\nAnswer: 5\n\nCase 2: n is even.\nAnswer: 6",
        "The answer is $5$ if n is odd. The answer is $6$ if n is even.",
    ],
}


def extracted():
    rows = [(kind, *row) for kind, rows in EXTRACTED.items() for row in rows]
    rows += [(kind, response, None) for kind, found in NOT_EXTRACTED.items() for response in found]
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
    ("text", "inside"),
    [(" $5$. ", "5"), (r"\(x\)", "x"), (r"\[x\]", "x"), ("$1$ or $2$", "$1$ or $2$"), ("$", "$")],
)
def test_bare_removes_one_pair_of_delimiters(text, inside):
    assert bare(text) == inside


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
    "bomb",
    [
        "9^9^9^9",
        "9^{9^{9}}",
        "9^{(9^{9})}",
        "10^{999999999}",
        r"1.5 \cdot 10^{-999999999}",
        "1000000000!",
        "((9!)!)!",
        r"\left(9!\right)!",
        "1 or " * MAX_LENGTH + "1",
        r"\binom{10000000}{5000000}",
        r"\frac{2^{10^9}}{2^{10^9}-1}",
        "1^{999999999}",
        "(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1),
        "(" * (MAX_DEPTH + 1) + "5" + ")" * (MAX_DEPTH + 1),
        "(3!)!",
        "1+" * MAX_LENGTH + "1",
        r"\frac{1}{2",
        "1" + "{" * 20 + "}" * 19,
        "ab ! ?" * 200,
    ],
)
def test_an_answer_beyond_a_limit_is_wrong_and_the_reason_says_which(bomb):
    verdict = decide(bomb, "5")
    assert verdict is not None
    assert verdict[0] is False
    assert verdict[1].startswith("too large: ")


@pytest.mark.parametrize(
    "answer",
    [
        r"\Re(12)",
        r"52_8 + 1",
        r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}",
        r"1 + 2 + \cdots + 9",
    ],
)
def test_mathematics_that_cannot_be_read_is_wrong(answer):
    correct, reason = check_equivalence(answer, "5")
    assert correct is False
    assert reason.startswith("not readable: ")


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
    ],
)
def test_prose_and_garbage_are_no_answers(answer):
    correct, reason = check_equivalence(answer, "5")
    assert correct is False
    assert reason.startswith(("not an answer", "not readable: "))


@pytest.mark.parametrize(
    "answer", ["2^{99}", "2^{2^{3}}", "2025!", r"\binom{2025}{1000}", r"[0, 1)", r"x^{100}"]
)
def test_ordinary_answers_are_not_refused(answer):
    assert refusal(answer) is None


def test_answer_as_large_as_the_gold_is_not_refused():
    assert decide("(9!)!+0", "(9!)!") is None


@pytest.mark.parametrize(
    "later",
    ["No, scrap that.", "Wait, that is wrong.", "Actually, it is 6.", "I do not know.", "So 6."],
)
def test_a_later_sentence_does_not_take_an_answer_back(later):
    assert extract_answer(rf"It is \boxed{{5}}. {later}") == "5"
    assert extract_answer(f"The answer is 5. {later}") == "5"


@pytest.mark.parametrize(
    "response", ["La respuesta es 34.", "Die Antwort ist 34.", "答案是34。", "Ответ: 34"]
)
def test_phrases_before_an_answer_are_english(response):
    assert extract_answer(response) is None
    assert extract_answer(rf"{response} \boxed{{34}}") == "34"
