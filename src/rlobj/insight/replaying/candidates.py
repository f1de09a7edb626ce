"""What is replayed: objectives of presets, objectives, rules, and rules with a number to sweep."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlobj.base.errors import ConfigError, counted
from rlobj.base.targets import importing
from rlobj.config.presets import Preset, load_preset
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import Controlled, Expr, Rule, read_rule
from rlobj.reporting import visible

POINTS, MOST_POINTS = 20, 1000
"""Values of a sweep, and the largest number of them."""
RECORDED = "recorded"
"""The name of the objective that the run trained."""
_SWEEP = re.compile(r"([A-Z]\w*)=([^.].*?)\.\.(.+?)(?::(\d+))?", re.ASCII)
_USAGE = "Expected NAME=FROM..TO or NAME=FROM..TO:COUNT, such as TAU=1e-4..1e-2"

Sweep = str | Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Candidates:
    """What is replayed besides the recorded objective.

    Attributes:
        objectives: by name; a preset waits for the run's `sampling.max_tokens`.
        rules: by text.
        swept: for each rule with a number to sweep, a rule for each value.
        name: of this number.
    """

    objectives: dict[str, Objective | Preset]
    rules: dict[str, Rule]
    swept: dict[str, dict[float, Rule]]
    name: str = ""


def read_candidates(given: Any, sweep: Sweep | None, trust: bool) -> Candidates:
    """Read objectives and rules.

    Args:
        given: a mapping from names, or a list of names of presets, preset files, objectives and
            rules; one of them may stand alone.
        sweep: "NAME=FROM..TO:COUNT", or {name: values}; NAME occurs in a rule.
        trust: import the code that they name by its path.

    Raises:
        ConfigError: an unknown preset, a text that is no rule, a sweep that no rule reads, or code
            without `trust`.
    """
    if isinstance(given, str | Objective | Expr):
        given = [given]
    named = given.items() if isinstance(given, Mapping) else ((None, each) for each in given)
    name, values = read_sweep(sweep)
    found = Candidates({}, {}, {}, name)
    with importing(trust):
        for label, each in named:
            if isinstance(each, Objective):
                label = label or f"objective {len(found.objectives) + 1}"
                found.objectives[label] = each
            elif isinstance(each, str) and (_is_name(each) or each.endswith((".yaml", ".yml"))):
                preset = load_preset(each)
                preset.resolved(1)  # finds errors before anything is read
                found.objectives[label or preset.name] = preset
            else:
                text = " ".join(str(each).split())
                if name and name in capitals(text):
                    rules = {value: _rule(_filled(text, name, value)) for value in values}
                    found.swept[label or text] = rules
                else:
                    found.rules[label or text] = each if isinstance(each, Rule) else _rule(text)
    if name and not found.swept:
        raise ConfigError(
            f"no rule reads '{name}', which is to be swept: --rule 'prob < {name}' --sweep "
            f"{name}=1e-4..1e-2"
        )
    if RECORDED in found.objectives:
        raise ConfigError(f"'{RECORDED}' is the run's own objective; choose another name")
    return found


def _is_name(text: str) -> bool:
    """Whether a text can be the name of a preset; no rule is a single name."""
    return re.fullmatch(r"[\w.+-]+", text) is not None


def capitals(text: str) -> list[str]:
    """The names in a rule that begin with a capital letter, texts in quotes aside."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)
    return re.findall(r"(?<![\w.])[A-Z]\w*", bare, re.ASCII)


def _filled(text: str, name: str, value: float) -> str:
    number = f"({value!r})" if value < 0 else repr(value)
    return re.sub(rf"(?<![\w.]){name}\b", number, text)


def _rule(text: str) -> Rule:
    try:
        return read_rule(text)
    except ConfigError as error:
        names = capitals(text)
        advice = f"\nTo sweep {names[0]}: --sweep {names[0]}=0.1..0.9" if names else ""
        raise ConfigError(f"{error}{advice}") from None


def unknown_names(rule: Rule, state: Mapping[str, Any]) -> str:
    """What is wrong with the capital names that a rule reads; "" = nothing.

    Args:
        rule: any rule.
        state: of the recorded objective, with the values of its controllers.
    """
    for node in rule.walk():
        if isinstance(node, Controlled) and node.name not in state:
            return (
                f"'{node.name}' has no value: it is no controller of the recorded objective. To "
                f"sweep it: --sweep {node.name}=1e-4..1e-2; one name is swept at a time"
            )
    return ""


def read_sweep(sweep: Sweep | None) -> tuple[str, list[float]]:
    """The name and the values of a sweep; ("", []) without.

    Values have the same ratio if both ends are positive and differ by a factor of 10 or more, else
    the same distance. They are rounded to four digits, except for the ends.

    Raises:
        ConfigError: a text that cannot be read, or a range without an extent.
    """
    if sweep is None:
        return "", []
    if isinstance(sweep, Mapping):
        [(name, values), *more] = sweep.items()
        if more:
            raise ConfigError(f"one number is swept at a time, got {', '.join(sweep)}")
        return name, [float(value) for value in values]
    shown = visible(sweep, 80)
    match = _SWEEP.fullmatch(sweep.replace(" ", ""))
    if match is None:
        raise ConfigError(f"cannot read the sweep '{shown}'. {_USAGE}")
    name, *ends, count = match.groups()
    points = POINTS if count is None else int(count)
    try:
        low, high = map(float, ends)
    except ValueError as error:
        raise ConfigError(f"cannot read the sweep '{shown}': {error}. {_USAGE}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(
            f"the sweep '{shown}' must rise from one number to a larger one. {_USAGE}"
        )
    if not 2 <= points <= MOST_POINTS:
        raise ConfigError(
            f"the sweep '{shown}' has {counted(points, 'value')}; expected 2 to {MOST_POINTS}"
        )
    space = np.geomspace if low > 0 and high >= 10 * low else np.linspace
    between = [float(f"{value:.4g}") for value in space(low, high, points)[1:-1]]
    return name, [low, *between, high]
