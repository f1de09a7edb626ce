"""`--beside PRESET`: a second run that differs from the first in its objective alone."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlobj.base.errors import ConfigError, nearest
from rlobj.config.layers import FromFile
from rlobj.config.presets import difference, load_preset
from rlobj.config.run_config import RunConfig, build_config, settings_of
from rlobj.insight import Outcome
from rlobj.training import RunDirectory
from rlobj_cli.screen.console import plain_value, say, table


def second_run(
    config: RunConfig, preset: str, folder: Path, *, trust: bool = False
) -> tuple[RunConfig, Path]:
    """The configuration and the folder of the run beside another one.

    Seed, problems, sampling, optimizer and initial policy stay; the objective is the preset's.

    Args:
        config: the first run.
        preset: name or file; "base" = the preset that the first run's preset builds on.
        folder: of the first run.
        trust: import the code that a preset file names.

    Raises:
        ConfigError: no such preset, the same objective, or a folder that has a run already.
    """
    if preset == "base":
        bases = load_preset(config.preset).bases if config.preset else ()
        if not bases:
            raise ConfigError(
                f"--beside base: {config.preset or 'a run without --preset'} builds on no preset. "
                f"Name one, such as --beside {'dapo' if config.preset == 'grpo' else 'grpo'}"
            )
        preset = bases[0]
    try:
        loaded = load_preset(preset)
    except ConfigError as error:
        hint = nearest(preset, ["base"], spell_out=False)
        raise ConfigError(f"--beside {preset}:{hint} {error}") from None
    own, objective = settings_of(config), dict(loaded.config.get("objective", {}))
    del own["objective"]
    above = {"preset": preset, "objective": objective}
    other = build_config([("run", own), (FromFile(f"--beside {preset}"), above)], trust=trust)
    if other.objective == config.objective:
        raise ConfigError(f"--beside {preset}: its objective is the same as that of the run")
    path = folder.with_name(f"{folder.name}-beside-{loaded.name}")
    RunDirectory(path).refuse_if_taken()
    return other, path


def show_plan(console: Console, config: RunConfig, other: RunConfig, folder: Path) -> None:
    """Print how the second run differs."""
    say(console, Text(f"\nbeside: {other.preset}, into {folder}; it differs in"))
    for path, a, b in difference(settings_of(config), settings_of(other)):
        say(console, Text(f"  {path}: {plain_value(a)} → {plain_value(b)}"))


def show_beside(console: Console, a: Path, b: Path) -> None:
    """Print the numbers of two finished runs in two columns."""
    runs = Outcome.read(a), Outcome.read(b)
    first, second = (run.measures(min(each.window for each in runs)) for run in runs)
    names = [run.name for run in runs]
    shown = table("", right=names)
    for name in dict.fromkeys([*first, *second]):
        shown.add_row(*(Text(each) for each in (name, first.get(name, "–"), second.get(name, "–"))))
    console.print(shown)
    ends, measures = [run.held_out() for run in runs], {run.measure for run in runs}
    if all(ends) and len(measures) == 1:
        (after, width), (other, its_width) = (each[-1] for each in ends)
        gap, both = after - other, math.hypot(width, its_width)
        console.print(
            Text(
                f"{measures.pop().name} after, {' − '.join(names)}: {gap:+.3f}  "
                f"[{gap - both:+.3f}, {gap + both:+.3f}] at 95%, one seed"
            )
        )
    for outcome in runs:
        console.print(Text(f"{outcome.name}: {outcome.run}", style="dim"), soft_wrap=True)
