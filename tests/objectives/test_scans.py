"""Sums and extremes along a response or a turn equal plain loops over its tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from strategies import NAN, tokens

from rlobj import BatchError, TokenBatch, parse
from rlobj.objectives.frame import Frame
from rlobj.objectives.statistics import SingleProcess

METHODS = [f"{way}_{kind}" for way in ("prefix", "suffix") for kind in ("sum", "min", "max")]
DECAYS = {
    "prob": lambda table: table.logprobs.exp(),
    "1 - 1 / length": lambda table: 1 - 1 / table.spread(table.lengths).double(),
    "when(position > 1, 0, 1)": lambda table: (table.positions < 2).double(),
    "reward": lambda table: table.spread(table.rewards),
}


def random_table(seed: int) -> TokenBatch:
    """Responses of 0 to 9 tokens, in turns of random lengths; float64."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 10, (7,), generator=random)
    size = int(lengths.sum())
    starts = torch.rand(size, generator=random) < 0.4
    turn = torch.cat([part.cumsum(0) for part in starts.split(lengths.tolist())])
    return tokens(
        lengths.tolist(),
        -3 * torch.rand(size, generator=random, dtype=torch.float64),
        entropy=torch.randn(size, generator=random, dtype=torch.float64),
        rewards=torch.randint(0, 2, (7,), generator=random).double(),
        turn=turn,
        turn_reward=turn.double(),
    )


def value(text: str, table: TokenBatch) -> list[float]:
    table = table.replace(advantages=table.logprobs)
    read = ("logprobs", "entropy", "advantages", "rewards", "turn", "turn_reward")
    frame = Frame([table], dict.fromkeys(read, "the test"), SingleProcess())
    numbers = frame.number(parse(text), "the test")  # type: ignore[arg-type]
    frame.check()
    return numbers.tolist()


def loop(method: str, values: list[float], decays: list[float], path: list[Any]) -> list[float]:
    """One token after another; a token on another path than the one before starts anew."""
    order = [*range(len(values))][:: 1 if method.startswith("prefix") else -1]
    result = [0.0] * len(values)
    for before, row in zip([None, *order], order, strict=False):
        result[row] = values[row]
        if before is None or path[before] != path[row]:
            continue
        if method.endswith("sum"):
            result[row] = values[row] + decays[row] * result[before]
        else:
            pick = min if method.endswith("min") else max
            result[row] = pick(values[row], result[before])
    return result


@pytest.mark.parametrize("by", ["response", "turn"])
@pytest.mark.parametrize("method", METHODS)
def test_scans_equal_a_loop_over_the_tokens(method: str, by: str) -> None:
    for table in map(random_table, range(20)):
        rows = table.responses.tolist()
        turns = [*zip(rows, table.turn_numbers.tolist(), strict=True)]
        path = turns if by == "turn" else rows
        for decay in [*DECAYS, "0.5", "0"] if method.endswith("sum") else [""]:
            number = f"decay={decay}, " if decay else ""
            decays = DECAYS.get(decay, lambda table: torch.full((len(table),), float(decay or 1)))  # noqa: B023
            expected = loop(method, table.entropy.tolist(), decays(table).tolist(), path)
            found = value(f"entropy.{method}({number}by='{by}')", table)
            exact = not method.endswith("sum")
            assert found == (expected if exact else pytest.approx(expected, rel=1e-13, abs=1e-13))


def test_a_sum_decays_by_the_token_that_receives_it() -> None:
    table = tokens([3], [-1.0] * 3, entropy=[1.0, 2.0, 4.0], rewards=[0.0])
    decay = "when(position > 0, when(position > 1, 0, 0.5), 1)"  # 1, 0.5 and 0
    assert value(f"entropy.prefix_sum(decay={decay})", table) == [1, 2.5, 4]
    assert value(f"entropy.suffix_sum(decay={decay})", table) == [1 + 2 + 0.5 * 4, 2 + 0.5 * 4, 4]


def test_what_is_undefined_stays_so_along_the_response() -> None:
    table = tokens([3, 1], [-1.0] * 4, entropy=[1.0, 2.0, 4.0, 8.0], rewards=[0.0, 0.0])
    number = "entropy.rank(within=entropy < 4, by='response')"  # 0, 1, undefined; undefined
    for method, expected in {
        "prefix_min": [1, 1, 0, 0],
        "suffix_max": [0, 0, 0, 0],
        f"prefix_sum(decay={number}": [1, 1, 0, 0],
    }.items():
        method, _, decay = method.partition("(")
        of, arguments = ("entropy", decay) if decay else (number, "")
        known = value(f"when({of}.{method}({arguments}) > -9, 1, 0)", table)
        assert known == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entropy.suffix_sum(decay=2 * entropy)", r"decay '2 \* entropy' in .* at row 1 \(resp"),
        ("entropy.prefix_sum(decay=0 - prob)", r"'0 - prob' in .* is not in \[0, 1\] at row 0"),
        ("turn_reward.suffix_sum(decay=turn)", r"'turn' in .* is not in \[0, 1\] at row 3"),
        ("entropy.suffix_sum(decay=1 / reward)", "'1 / reward' is NaN or infinite at row 0"),
    ],
)
def test_a_decay_outside_its_range_is_refused_with_its_row(text: str, message: str) -> None:
    table = tokens(
        [2, 2, 1],
        [-1.0] * 5,
        entropy=[0.5, 0.75, 0.25, 0.0, 9.0],
        rewards=[0.0, 1.0, NAN],  # nothing is refused in an undecided response
        turn=[0, 1, 1, 2, 5],
        turn_reward=[1.0, 1.0, 1.0, 1.0, NAN],
    )
    with pytest.raises(BatchError, match=message):
        value(text, table)
