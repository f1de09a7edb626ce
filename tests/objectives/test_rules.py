"""Rules: text and Python build the same expressions; errors have a caret and advice."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from strategies import OWN, expressions, tokens

from rlobj import ConfigError, Objective, advantage, entropy, logprob, parse, prob, surprisal, when
from rlobj.objectives.rules import Expr, Scope
from rlobj.objectives.rules.nodes import Column, Constant, Cut, Named, Number, rounded_share
from rlobj.objectives.rules.operators import FUNCTIONS
from rlobj.objectives.rules.parsing import MAX_DEPTH

NUMBERS, RULES = expressions()
STAPO = (advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)


@pytest.mark.slow
@settings(max_examples=500)
@given(NUMBERS | RULES)
def test_parsing_the_text_of_an_expression_gives_the_expression(expression: Expr) -> None:
    named = {str(node): node for node in expression.walk() if isinstance(node, Named)}
    again = parse(str(expression), Scope(OWN, named))
    assert again == expression
    assert str(again) == str(expression)
    assert hash(again) == hash(expression)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)", STAPO),
        ("advantage > 0 and prob < 0.002 and entropy.bottom(0.8)", STAPO),
        ("not advantage > 0", ~(advantage > 0)),
        ("advantage > 0 or not prob < 1 and prob > 0", (advantage > 0) | ~(prob < 1) & (prob > 0)),
        ("0.5 < prob", prob > 0.5),
        ("entropy.top(fraction=0.2)", entropy.top(0.2)),
        ("entropy.top(0.2, within=advantage > 0)", entropy.top(0.2, within="advantage > 0")),
        (
            "(advantage > 0).sample((prob < 0.5).count(), seed=3)",
            (advantage > 0).sample((prob < 0.5).count(), seed=3),
        ),
        ("(prob < 0.5).sample(2 * W)", (prob < 0.5).sample("2 * W")),
        ("when(surprisal.top(0.1), W, 1)", when(surprisal.top(0.1), "W", 1)),
        ("-logprob", -logprob),
        ("-(0.5)", -Constant(0.5)),
        ("-0.5", Constant(-0.5)),
        ("-prob ** 2", -(prob**2)),
    ],
)
def test_text_and_python_build_the_same_expression(text: str, expected: Expr) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "caret", "message"),
    [
        ("prob < 0.5 & entropy2.top(0.1)", "entropy2", "unknown name 'entropy2'. Did you mean"),
        ("(advantage > 0) & (probb < 1)", "probb", "Did you mean 'prob'?"),
        ("entropy.top(0.2, fraction=0.3)", "entropy", "multiple values for argument 'fraction'"),
        (
            "entropy.mean('update', None, 1)",
            "entropy",
            "too many positional arguments; write",
        ),
        ("0 < prob < 1", "prob", "put each comparison in parentheses"),
        ("prob == 0.5", "prob", "use <, <=, > or >="),
        ("prob % 2 < 1", "prob", "operator Mod is not allowed; use + - * / ** & |"),
        ("+prob < 1", "+", "UAdd cannot stand before 'prob'"),
        ("advantage > 0 & (prob < 1)", "0 &", "put each comparison in parentheses"),
        ("~prob", "~", "bad operand type for unary ~"),
        ("when(prob < 1, 1)", "when", "missing a required argument: 'otherwise'"),
        ("prob.sample(5)", "prob", "'sample' is no method of 'prob'"),
        ("entropy.top(1.5)", "entropy", "fraction must lie in [0, 1], got 1.5"),
        ("entropy.top(0.1, round='up')", "entropy", "expected one of ceil, floor"),
        ("entropy.top(prob)", "entropy", "fraction must lie in [0, 1], got prob"),
        ("entropy.top(0.1, by='all')", "entropy", "by='all': expected one of update, group"),
        ("entropy.top(0.2", "(0.2", "'(' was never closed"),
        ("entropy.men() > 1", "entropy", "'men' is no method of 'entropy'. Did you mean 'mean'"),
        ("prob > lgo(prob)", "lgo", "'lgo' is no function. Did you mean 'log'"),
        ("prob.top(0.1, within=entropi > 1, by='token')", "entropi", "unknown name 'entropi'"),
        ("prob.mean(within=True)", "prob", "within takes a rule such as prob < 0.002, got 'True'"),
        ("when('prob < 1', 1, 2)", "'prob", "expected a number, got 'prob < 1'"),
        ("prob < 1 && entropy > 0", "& entropy", "cannot be read"),
        ("W.top(0.1)", "W", "top() needs a column; 'W' is one number"),
        ("(prob < 1).sample(-1)", "(", "expected a whole number, a share"),
        ("(prob < 1).sample(0.2, round='linear')", "(", "'linear': expected one of ceil, floor"),
        ("prob < 1e999", "1e999", "must be finite"),
        (
            "entropy.top()",
            "entropy",
            "missing a required argument: 'fraction'; write top",
        ),
        ("when(prob, 1, 0)", "when", "when takes a rule"),
        ("W.rank() > 1", "W", "rank() needs a column; 'W' is one number"),
        ("prob < 'a'", "'a'", "expected a number, got 'a'"),
        ("prob <", None, "cannot be read"),
        ("prob < 1 # rare", "#", "a rule cannot hold a comment"),
        ("top", "top", "'top' must be called with arguments"),
        ("prob.suffix_sum(decay=1.5)", "prob", "decay must lie in [0, 1], got 1.5"),
        ("prob.suffix_sum(decay=prob > 0)", "prob", "expected a number, got a rule"),
        ("turn.prefix_sum(decay=prob)", "turn", "one value per turn, and the decay 'prob' one per"),
        ("prob.prefix_min(0.5)", "prob", "by=0.5: expected one of"),
        ("reward(1)", "reward", "write reward("),
        ("custom('math:sqrt')", "custom", "must be a subclass of rlobj's CustomRule"),
        ("advantag\N{LATIN SMALL LETTER E WITH ACUTE} > 0 and probb < 1", "advantag", "advantage"),
    ],
)
def test_errors_in_a_text_have_a_caret_and_advice(text, caret, message):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    lines = str(caught.value).split("\n")
    assert message in lines[0]
    assert lines[1] == f"    {text}"
    if caret is not None:
        assert len(lines[2]) - 1 == 4 + text.index(caret), str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *("prob.name", "prob.__class__.__base__", "__import__('os').system('true')", "print(1)"),
        *("(lambda: prob)()", "[prob for prob in prob]", "{prob: 1}", "{prob}", "(prob, entropy)"),
        *("prob[0]", "prob if prob else entropy", "(x := prob) < 1", "f'{prob}'", "await prob"),
        *("prob.top(f'{0.1}')", "prob.top(*[0.1])", "prob.top(**{})", "prob.top(0.1)(0.2)"),
        *("prob < ...", "None", "", "   ", "prob; entropy", "prob = 1", "prob < 1\0", "import os"),
        "entropy.top(0.1, within='prob < 1')",
        "(" * 500 + "prob < 1" + ")" * 500,
        "~" * 500 + "(prob < 1)",
        "~" * 100_000 + "(prob < 1)",
        "not " * 5000 + "prob < 1",
        " | ".join(["(prob < 1)"] * 5000),
        " or ".join(["prob < 1"] * 500),
        "+".join(["prob"] * 300) + " < 1",
        "prob < 1" + "0" * 5000,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_texts_outside_the_language_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)


def test_the_deepest_accepted_text_can_be_printed_and_used() -> None:
    rule = parse(" or ".join(["prob < 1"] * (MAX_DEPTH - 1)))
    assert parse(str(rule)) == rule
    assert Objective(drop=rule) == Objective(drop=str(rule))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [
        lambda: entropy & (prob < 1),
        lambda: (prob < 1) | 1,
        lambda: (prob < 1) > 0,
        lambda: 2 - (prob < 1),
        lambda: prob > (prob < 1),
        lambda: prob + True,
        lambda: prob < None,
        lambda: when(prob < 1, prob < 1, 0),
        lambda: entropy.top(0.1, within=prob),  # type: ignore[arg-type]
        lambda: entropy.top(0.1, at_least=True),
        lambda: entropy.top(True),
        lambda: Constant(float("nan")),
        lambda: Objective(drop=prob),  # type: ignore[arg-type]
        lambda: Objective(reweight=prob < 1),  # type: ignore[arg-type]
    ],
)
def test_mixing_numbers_and_rules_raises_an_error(build: Any) -> None:
    with pytest.raises((ConfigError, TypeError)):
        build()


@pytest.mark.parametrize("use", [lambda: 0 < prob < 1, lambda: bool(entropy.top(0.1))])
def test_an_expression_has_no_truth_value(use: Any) -> None:
    with pytest.raises(TypeError, match=r"Write \(0 < prob\) & \(prob < 1\)"):
        use()


def test_expressions_and_objectives_print_as_text() -> None:
    assert repr(prob < 0.2) == "prob < 0.2"
    assert repr(entropy.top(0.2, within=advantage > 0)) == "entropy.top(0.2, within=advantage > 0)"
    stapo = Objective(drop=STAPO)
    assert repr(stapo) == str(stapo.explain()) == repr(stapo.explain())


def test_equality_compares_expressions_and_not_tokens() -> None:
    assert (prob < 0.5) == (prob < 0.5)
    assert (prob < 0.5) != (prob < 0.25)
    assert (prob < 0.5) != "prob < 0.5"
    assert {prob: 1}[Column("prob")] == 1


def test_numbers_of_other_libraries_print_as_plain_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    rule = (prob < numpy.float64(0.5)) & entropy.top(numpy.float64(0.2))
    assert str(rule) == "(prob < 0.5) & entropy.top(0.2)"
    assert (numpy.float64(0.5) > prob) == (prob < 0.5)


@pytest.mark.parametrize(
    ("settings", "population", "size"),
    [
        ({"fraction": 0.07}, 100, 7),  # 0.07 * 100 is 7.000000000000001 in floats
        ({"fraction": 0.2}, 11, 3),
        ({"fraction": 0.2, "round": "floor"}, 11, 2),
        ({"fraction": 0.01, "round": "floor", "at_least": 1}, 11, 1),
        ({"fraction": 0.01, "round": "floor", "none_below": 2}, 199, 0),
        ({"fraction": 0.01, "round": "floor", "none_below": 2}, 200, 2),
        ({"fraction": 0.8, "round": "linear"}, 4, 3),  # 0.8 * 3 = 2.4: values 1 to 3
        ({"fraction": 0.8, "round": "linear"}, 6, 5),  # 0.8 * 5 = 4: the quantile is value 5
        ({"fraction": 0, "round": "linear"}, 6, 1),
        ({"fraction": 0.8, "round": "linear"}, 0, 0),
        ({"fraction": 0.5, "at_least": 9}, 4, 4),
        ({"fraction": 0.5}, 0, 0),
    ],
)
def test_the_size_of_a_cut_equals_values_by_hand(settings: Any, population: int, size: int) -> None:
    assert Cut("top", entropy, **settings).size(population) == size


@pytest.mark.parametrize("fraction", [0, 0.07, 0.2, 0.5, 0.8, 0.99, 1])
def test_linear_cuts_end_at_the_quantile_of_torch(fraction: float) -> None:
    """Also with ties: `bottom` up to the quantile of the fraction, `top` from that of the rest."""
    for n in (1, 2, 3, 4, 5, 6, 7, 11, 50):
        numbers = torch.randint(0, 1 + n // 2, (n,), generator=torch.Generator().manual_seed(n))
        batch = tokens([n], [-1.0] * n, entropy=numbers.double() / 8, advantages=[1.0])
        for side, q in (("bottom", fraction), ("top", 1 - fraction)):
            cut = batch.entropy.quantile(q)  # pyright: ignore[reportOptionalMemberAccess]
            expected = batch.entropy <= cut if side == "bottom" else batch.entropy >= cut
            rule = f"entropy.{side}({fraction}, round='linear', by='response')"
            kept = Objective(keep=rule).plan([batch]).weights[0] != 0
            assert torch.equal(kept, expected), (n, rule)


@pytest.mark.parametrize("n", [3, 6, 30, 3 * 10**6])
def test_a_third_of_three_tokens_is_one_token(n: int) -> None:
    assert rounded_share(1 / 3, n, "floor") == rounded_share(1 / 3, n, "ceil") == n // 3
    assert rounded_share(2 / 3, n + 1, "linear") == n // 3 * 2 + 1, "as torch.quantile interpolates"
    assert rounded_share(1e-12, n, "ceil") == 1
    assert [rounded_share(x, 100, "floor") for x in (0.29, 0.57)] == [29, 57]  # as decimals


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "when"])
def test_a_function_of_plain_numbers_is_an_expression(name: str) -> None:
    count = len(inspect.signature(FUNCTIONS[name]).parameters)
    number = parse(f"-{name}({', '.join(['0.75'] * count)})")
    assert isinstance(number, Number)
    assert parse(str(number)) == number
