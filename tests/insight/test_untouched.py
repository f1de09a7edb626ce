"""What a rule lacked that touched no token."""

from __future__ import annotations

import math
from pathlib import Path

from record_rows import write_records

from rlobj.insight.untouched import reach
from rlobj.objectives.rules import parse

STAPO = parse("(advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)")


def test_each_part_of_a_rule_says_how_far_it_was_from_a_token(tmp_path: Path) -> None:
    write_records(
        tmp_path,
        [
            {"advantage": -1.0, "prob": 0.004},
            {"advantage": 1.0, "prob": 0.02, "inclusion_probability": 0.1},
            {"advantage": 1.0, "prob": 0.03},
            {"advantage": 1.0, "prob": None},
        ],
    )
    positive, rare, cut = reach(tmp_path, STAPO)
    assert (str(positive.rule), round(positive.tokens, 4)) == ("advantage > 0", 12)
    assert (str(rare.rule), rare.tokens) == ("prob < 0.002", 0)
    assert math.isclose(rare.nearest, 0.02, rel_tol=1e-6)  # not 0.004: its advantage is negative
    assert (str(cut.rule), cut.readable) == ("entropy.bottom(0.8)", False)


def test_a_rule_of_one_part_is_read_as_well(tmp_path: Path) -> None:
    write_records(tmp_path, [{"entropy": 0.5}, {"entropy": 1.5}])
    [part] = reach(tmp_path, parse("entropy > 2"))
    assert (part.tokens, part.nearest) == (0, 1.5)
