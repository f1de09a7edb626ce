"""Open a run that is about to be resumed: its own configuration, with what may change."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, Setting
from rlobj.base.launched import started_processes
from rlobj.base.paths import step_of
from rlobj.base.targets import without_imports
from rlobj.runs.checkpoints import newest_sound
from rlobj.runs.configuration import read_settings
from rlobj.runs.layout import how_to_continue, in_another_trainer
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.building import build_config
from rlobj.settings.layers import Layer, merged, origins
from rlobj.settings.presets import difference
from rlobj.settings.resuming import refuse_changes
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.trust import trust_option, trusted_config
from rlobj.training.new_run import prepared
from rlobj.training.resolving import RunRequest


def open_resumed(
    run: Path | str,
    changes: Sequence[Layer] = (),
    again: Sequence[Layer] = (),
    *,
    trust: bool = False,
    processes: int | None = None,
) -> RunRequest:
    """Check a run that is about to be resumed, and all that the caller gives with it.

    Args:
        run: the run directory.
        changes: layers over the run's own configuration.
        again: what the run was started with, by the names of `train`'s arguments.
        trust: as in `resume`, which also lists the errors.
        processes: as in `resume`.
    """
    path = Path(run)
    if in_another_trainer(path):
        raise ConfigError(f"{run} cannot be resumed here. {how_to_continue(path)}")
    recorded = read_settings(path)  # an error if there is no run
    refuse_changes(run, [f"{origin} {name}" for name, origin in origins(changes).items()])
    from_caller = merged([*again, *changes])
    with without_imports():
        stored = settings_of(RunConfig(**recorded))
    config = trusted_config(run, [("run", stored), *changes], from_caller, trust)
    _require_same_objects(run, stored, again, _recorded_objects(config))
    newest = newest_sound(RunFolder(run).path)
    steps, done = config.training.steps, step_of(newest) if newest else 0
    if steps < done:
        raise ConfigError(Setting("training.steps", steps), f": {run} has done {done} steps")
    return RunRequest(
        config, path, [*changes], processes or started_processes(), done, resumed=True
    )


def how_to_go_on(run: RunRequest) -> str:
    """How to continue a run that has stopped."""
    done = RunFolder(run.path).steps_saved()
    saved = f"the newest checkpoint at step {done}" if done else "no checkpoint yet"
    trust = trust_option(settings_of(run.config))
    if objects := _recorded_objects(run.config):  # which no command line can name
        arguments = [repr(str(run.path)), *(f"{name}=..." for name in objects)]
        arguments += ["trust=True"] if trust else []
        return f"Stopped with {saved}. Continue with:\n  rlobj.resume({', '.join(arguments)})"
    processes = f" --processes {run.processes}" if run.processes > 1 else ""
    return f"Stopped with {saved}. Continue with:\n  rlobj resume {run.path}{trust}{processes}"


def _recorded_objects(config: RunConfig) -> list[str]:
    """The arguments of `rlobj.train` that were objects when the run was started."""
    return [*config.objects, *(["sampler"] if config.sampling.engine == "object" else [])]


def _require_same_objects(
    run: Path | str, stored: Mapping[str, Any], again: Sequence[Layer], needed: Sequence[str]
) -> None:
    """Check that a resumed run gets the objects that it was started with, and no others."""
    missing = [f"{name}=..." for name in needed if name not in dict(again)]
    if missing:
        raise ConfigError(
            f"{run} was started with Python objects. Pass them again: "
            f"rlobj.resume({str(run)!r}, {', '.join(missing)})"
        )
    for name, layer in again:
        settings = dict(stored)
        if name != "model":  # it need not be there any more
            settings["model"] = {**stored["model"], "name": None, "digest": None}
        config = prepared(build_config([("run", settings), (name, layer)]))
        for path, before, now in difference(settings, settings_of(config)):
            raise ConfigError(
                f"{run} was started with another {name}: {path} is {before!r}, not {now!r}"
            )
