"""What is replayed: objectives of presets, objectives, rules, and rules with a number to sweep."""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlobj.base.errors import ConfigError
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import Expr, Rule, read_rule
from rlobj.objectives.rules.columns import COLUMNS
from rlobj.reporting import visible
from rlobj.settings.presets import Preset, load_preset

RECORDED = "recorded"
"""The name of the objective that the run trained."""
POINTS, MOST_POINTS = 20, 1000
"""Values of a sweep, and the largest number of them."""
_SWEEP = re.compile(r"([A-Z]\w*)=([^.].*?)\.\.(.+?)(?::(\d{1,9}))?", re.ASCII)
_USAGE = f"Expected NAME=FROM..TO:COUNT with 2 to {MOST_POINTS} values, such as TAU=1e-4..1e-2:20"

Sweep = str | Mapping[str, Sequence[float]]


Candidates = tuple[dict[str, Objective | Preset], dict[str, dict[float | None, Rule]], str]
"""What is replayed besides the recorded objective: objectives by name, of which a preset waits for
the run's `sampling.max_tokens`; rules by name, and by the swept value, None = nothing is swept in
it; and the name of the number that is swept, or ""."""


def read_candidates(objectives: Any, sweep: Sweep | None) -> Candidates:
    """Read objectives and rules.

    Args:
        objectives: a mapping from names, or a list of names of presets, preset files, objectives
            and rules; one of them may stand alone.
        sweep: "NAME=FROM..TO:COUNT", or {NAME: values}; NAME occurs in a rule.

    Raises:
        ConfigError: an unknown preset, a text that is no rule, or a sweep that no rule reads.
    """
    objectives = [objectives] if isinstance(objectives, str | Objective | Expr) else objectives
    by_name = isinstance(objectives, Mapping)
    named = objectives.items() if by_name else ((None, candidate) for candidate in objectives)
    swept, values = read_sweep(sweep)
    planned, rules = dict[str, Objective | Preset](), dict[str, dict[float | None, Rule]]()
    for name, candidate in named:
        text = " ".join(str(candidate).split())
        if isinstance(candidate, Objective):
            planned[name or f"objective {len(planned) + 1}"] = candidate
        elif re.fullmatch(r"[\w.+-]+|.+\.ya?ml", text) and text not in COLUMNS:
            preset = load_preset(text)
            preset.resolved()  # finds errors before anything is read
            planned[name or preset.name] = preset
        elif swept and re.search(_named(swept), text):
            rules[name or text] = {
                value: read_rule(re.sub(_named(swept), f"({value!r})", text)) for value in values
            }
        else:
            rule = candidate if isinstance(candidate, Rule) else read_rule(text)
            rules[name or text] = {None: rule}
    if RECORDED in {**planned, **rules}:
        raise ConfigError(f"'{RECORDED}' is the run's own objective; choose another name")
    if swept and not any(None not in values for values in rules.values()):
        raise ConfigError(f"no rule reads '{swept}'. Give a rule such as 'prob < {swept}'")
    return planned, rules, swept


def _named(name: str) -> str:
    """A pattern that finds a name in a rule."""
    return rf"(?<![\w.'\"]){name}\b(?!['\"])"


def read_sweep(sweep: Sweep | None) -> tuple[str, Sequence[float]]:
    """The name and the values of a sweep; ("", ()) without.

    Values have the same ratio if both ends are positive and differ by a factor of 10 or more, else
    the same distance. They are rounded to four digits, except for the ends.

    Raises:
        ConfigError: a text that cannot be read, or a range without an extent.
    """
    if not sweep:
        return "", ()
    if isinstance(sweep, Mapping):
        [(name, values), *more] = sweep.items()
        if more or not len(values):
            raise ConfigError("sweep needs one name with values, such as {'TAU': [0.01, 0.1]}")
        return name, [float(value) for value in values]
    match = _SWEEP.fullmatch(sweep.replace(" ", ""))
    name, first, last, count = match.groups() if match else ("", "", "", "")
    low = high = math.nan
    points = 0
    with contextlib.suppress(ValueError):
        low, high, points = float(first), float(last), int(count or POINTS)
    if not (2 <= points <= MOST_POINTS and math.isfinite(high - low) and low < high):
        raise ConfigError(f"cannot read the sweep '{visible(sweep, 80)}'. {_USAGE}")
    space = np.geomspace if low > 0 and high >= 10 * low else np.linspace
    between = [float(f"{value:.4g}") for value in space(low, high, points)[1:-1]]
    return name, [low, *between, high]
