"""Values of random expressions equal those of the slow evaluator in `reference_rules`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rules import NOT_FINITE, Approximate, Close, NotFinite, Outcome, Reference
from strategies import (
    OWN,
    awkward_batch,
    by_own_columns,
    expressions,
    larger_numbers,
    larger_rules,
    objectives,
    owned,
    rolled,
    tokens,
)

from rlobj import BatchError, Objective, TokenBatch, parse, when
from rlobj.objectives.frame import Frame
from rlobj.objectives.rules import COLUMNS as RULE_COLUMNS
from rlobj.objectives.rules import CustomRule, Expr
from rlobj.objectives.rules.nodes import Column, Controlled, NamedReward
from rlobj.objectives.statistics import SingleProcess, hash_keys

UPDATE = 3
CONTROLLERS = {"W": 1.25, "M": 0.75, "Beta_2": -0.5}
STATE = {"update": UPDATE, **{name: {"value": value} for name, value in CONTROLLERS.items()}}
COLUMNS = (
    *("logprobs", "old_logprobs", "entropy", "old_entropy", "advantages", "rewards"),
    *("ref_logprobs", "sampler_logprobs", "proxy_logprobs", "collision"),
    *("turn", "turn_reward", "staleness"),
    *("old_collision", "reference_entropy", "reference_kl", *OWN),
)
coarse = st.sampled_from([-2, -1, -0.5, 0, 0.125, 0.25, 0.5, 1, 2, 3])
SMALLER = expressions(depth=2, constants=coarse | st.floats(1e-3, 10))
DEEPER = larger_numbers(SMALLER), larger_rules(SMALLER)
OF_ALL_KINDS = larger_rules(DEEPER) | larger_numbers(DEEPER)
OWN_NUMBERS, OWN_RULES = by_own_columns(SMALLER)
DEFINED = OWN_NUMBERS.map(lambda x: when(x < 1e9, x, -7))  # a number in no unit is undefined
EXPRESSIONS = st.integers(0, 2).flatmap([OF_ALL_KINDS, DEFINED, OWN_RULES].__getitem__)


def update(seed: int) -> TokenBatch:
    """An awkward batch with two rewards, columns of one's own, and advantages."""
    batch = owned(awkward_batch(seed, groups=3, longest=4), seed)
    random = torch.Generator().manual_seed(seed)
    second = torch.randint(0, 2, batch.rewards.shape, generator=random).double()
    batch = batch.replace(
        rewards=torch.stack([batch.rewards, second], 1),
        reward_names=("accuracy", "format"),
        reward_weights=(1.0, 0.5),
    )
    return Objective().with_advantages([batch])[0]


BATCHES = [update(seed) for seed in range(12)]
BATCHES += [Objective().with_advantages([rolled(batch, 1)])[0] for batch in BATCHES]


def draw(seed: int, response: int, position: int) -> int:
    return int(hash_keys((seed, UPDATE, response, position)))


def frame_of(tables: Sequence[TokenBatch], comm: Any = None) -> Frame:
    columns = dict.fromkeys(COLUMNS, "the test")
    return Frame(tables, columns, comm or SingleProcess(), STATE)


def engine(expression: Any, tables: Sequence[TokenBatch], comm: Any = None) -> list[Any] | None:
    """The engine's value on each row; None if it refuses the expression."""
    frame = frame_of(tables, comm)
    read = frame.rule if expression.is_rule else partial(frame.number, who="the test")
    values = read(expression)
    try:
        frame.check()
    except BatchError:
        return None
    return values.tolist()


def reference(expression: Expr, batch: TokenBatch) -> dict[int, Any] | None:
    """The reference's values on rows of decided responses.

    None = a number is undefined, or the values depend on a number that is not finite.
    """
    slow = Reference(batch, CONTROLLERS, draw, OWN)
    try:
        found = slow.rule(expression) if expression.is_rule else slow.numbers(expression)
    except NotFinite:
        return None
    if expression.is_rule:
        return None if NOT_FINITE in found.values() else found
    return None if not all(value and value.finite for value in found.values()) else found


def disagreement(expression: Expr, batch: TokenBatch) -> str:
    """Where engine and reference differ; raises `Close` where rounding decides."""
    expected, found = reference(expression, batch), engine(expression, [batch])
    if expected is None or found is None:
        return "" if expected is found else f"expected {expected}, got {found}"
    wrong = [row for row, value in expected.items() if not same(value, found[row])]
    return "".join(f"row {row}: expected {expected[row]}, got {found[row]}; " for row in wrong)


def same(value: Outcome | Approximate, found: float) -> bool:
    if isinstance(value, Approximate):
        return abs(found - value.value) <= max(1e-12 * abs(value.value), value.error)
    return found is (value is True)


@pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_values_equal_those_of_the_reference(examples: int) -> None:
    @settings(max_examples=examples)
    @given(EXPRESSIONS, st.sampled_from(range(len(BATCHES))))
    def check(expression: Expr, batch: int) -> None:
        with suppress(Close):
            assert disagreement(expression, BATCHES[batch]) == "", str(expression)

    check()


def readable(expression: Expr) -> bool:
    """Whether the batches have what it reads: no score, and no controller of another name."""
    known = {*RULE_COLUMNS, *OWN, *CONTROLLERS}
    return not any(
        isinstance(node, CustomRule | NamedReward)
        or (isinstance(node, Column | Controlled) and node.name not in known)
        for node in expression.walk()
    )


def test_rules_of_all_presets_equal_the_reference() -> None:
    parts = {
        part
        for objective in objectives().values()
        for part in (
            *(objective.drop_rule, objective.keep_rule, objective.weight, objective.shape),
            *objective.surrogate.rules(),
            *(penalty.where for penalty in objective.penalties),
        )
        if part is not None and readable(part)
    }
    decided = 0
    for part in sorted(parts, key=str):
        for batch in (*BATCHES[:2], *BATCHES[12:14]):
            with suppress(Close):
                assert disagreement(part, batch) == "", str(part)
                decided += 1
    assert decided > 2 * len(parts) > 100


# Found by the tests above, or decided with them. All prob are above 0.

NONE = "surprisal.mean(within=prob > 2)"  # undefined


@pytest.mark.parametrize(
    ("rule", "selects"),
    [
        (f"~(surprisal * {NONE}).top(0.5)", False),
        (f"~(surprisal * {NONE}).top(0.5, within=prob > 2)", True),  # no token is in `within`
        (f"when(surprisal > {NONE}, 1, 2) >= 2", True),
        (f"when(surprisal > {NONE}, {NONE}, 2) >= 2", True),
        (f"when(prob > 2, {NONE}, 2) >= 2", True),
        (f"(surprisal > {NONE}) | (prob > 0)", True),
        (f"~((surprisal > {NONE}) & (prob > 2))", True),
        (f"~(surprisal > {NONE})", False),
        # 1 / 0 outside the population, and in the number that `when` does not choose
        (
            "surprisal > (1 / position).mean(by='response', within=(position > 0) & (prob > 2))",
            False,
        ),
        (f"when(position > 0, 1 / position, 0) > {NONE}", False),
        ("(position > 0) & (1 / position > 2)", False),
        ("(prob > 0) | (1 / position > 2)", True),
    ],
)
def test_what_is_undefined_or_not_read_does_not_decide(rule: str, selects: bool) -> None:
    batch = BATCHES[0]
    assert disagreement(parse(rule), batch) == ""
    assert engine(parse(rule), [batch]) == (batch.decided & selects).tolist()


@pytest.mark.parametrize(
    "rule",
    [
        "1 / position > 2",
        "(1 / position > 2) & (prob > 0)",
        "(1 / position).mean(by='response') > 0",
        "(1 / position).top(0.5)",
        "(1 / position > 2).any()",
        "surprisal.top(0.5, within=1 / position > 0)",
        "sign(log(position)) > 0",
        f"(1 / position > 2) & (prob > {NONE})",
        "when(1 / position > 2, 1, 2) >= 1",
    ],
)
def test_a_rule_that_depends_on_infinity_is_refused(rule: str) -> None:
    assert reference(parse(rule), BATCHES[0]) is None
    assert engine(parse(rule), BATCHES[:1]) is None


def test_a_long_chain_of_rules_is_evaluated_once() -> None:
    rule = parse(" and ".join([f"surprisal > {NONE}"] * 60))
    assert engine(rule, BATCHES[:1]) == [False] * len(BATCHES[0])


def test_a_group_of_small_numbers_keeps_its_mean_beside_one_of_large_numbers() -> None:
    gaps = [[0.4, 0.0], [0.002, -0.001], [-0.3, -0.5]]
    rows = torch.tensor(gaps, dtype=torch.float64).flatten().repeat_interleave(300)
    batch = TokenBatch(
        lengths=[300] * 6,
        groups=[0, 0, 1, 1, 2, 2],
        logprobs=rows - 60,
        old_logprobs=torch.full_like(rows, -60),
        rewards=[0.0, 1.0] * 3,
    )
    number = parse("exp((logprob - old_logprob).sum(by='response')).mean(by='group')")
    found = Frame([batch], {"logprobs": "", "old_logprobs": ""}, SingleProcess()).number(number)
    expected = [math.fsum(math.exp(300 * gap) for gap in pair) / 2 for pair in gaps]
    torch.testing.assert_close(
        found[::600], torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("exponent", ["1.7", "-2.5", "7", "2", "3", "0.5", "-1", "entropy"])
def test_a_power_does_not_depend_on_the_row(exponent: str) -> None:
    batch, number = awkward_batch(2), parse(f"prob ** {exponent}")
    batch = Objective().with_advantages([batch])[0]
    read = dict.fromkeys(("logprobs", "entropy"), "the test")
    one = Frame([batch], read, SingleProcess()).number(number)
    parts = [Frame([part], read, SingleProcess()).number(number) for part in batch.split(40)]
    assert torch.equal(torch.cat(parts), one)


def test_powers_of_whole_numbers_are_exact_in_float32() -> None:
    batch = TokenBatch(lengths=[1], groups=[0], logprobs=[-1.0], entropy=[10.0], advantages=[1.0])
    rule = "(entropy ** 4 <= 10000) & (entropy ** 4 >= 10000) & (entropy ** 5 <= 100000)"
    assert Objective(keep=rule).plan([batch]).kept == 1  # type: ignore[arg-type]


def test_powers_of_zero_and_of_negative_numbers() -> None:
    batch = tokens([4], [-1.0] * 4, entropy=[2.0, 0.0, -1.0, 0.5], rewards=[1.0])
    frame = Frame([batch], {"logprobs": "", "entropy": ""}, SingleProcess(), STATE)
    for text, expected in {
        "entropy ** 3": [8, 0, -1, 0.125],
        "entropy ** (position + 1)": [2, 0, -1, 0.0625],
        "entropy ** (0 * prob)": [1, 1, 1, 1],
        "(-2.0) ** position": [1, -2, 4, -8],
    }.items():
        found = frame.number(parse(text))
        torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=1e-14, atol=0)
    assert frame.number(parse("entropy ** (position + 0.5)"), "the test")[3] > 0
    with pytest.raises(BatchError, match="row 2"):
        frame.check()
