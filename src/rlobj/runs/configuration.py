"""The settings of a run as its folder has them."""

from pathlib import Path
from typing import Any

from rlobj.base.errors import Argument, ConfigError, Message, nearest
from rlobj.base.paths import there
from rlobj.installation import require_format
from rlobj.runs.layout import CONFIG_FILE, is_run
from rlobj.runs.sessions import FORMAT, read_sessions
from rlobj.settings.presets import read_yaml
from rlobj.settings.run_config import RunConfig, given_settings, settings_of


def read_run_config(path: Path) -> RunConfig:
    """Read and check the settings of a run.

    Raises:
        ConfigError: as `read_settings`, or for settings that this version does not know.
    """
    return RunConfig(**read_settings(path))


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a run as they are written; nothing that they name is imported.

    Raises:
        ConfigError: the path is not the folder of a run, or another version of rlobj made the run.
    """
    if not path.is_dir():
        what = "it is a file, and a run is a folder" if there(path) else "there is no such folder"
        beside = [str(other) for other in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(str(path), beside, spell_out=False)
        raise ConfigError(f"{path} is not a run: {what}.{near}")
    if not is_run(path):
        below = sorted(str(other) for other in path.glob("*") if is_run(other))[-3:]
        newest = f". Runs in it: {', '.join(below)}" if below else ""
        raise ConfigError(f"{path} is not a run: it has no {CONFIG_FILE}{newest}")
    _refuse_other_formats(path)
    return read_yaml(path / CONFIG_FILE)


def _refuse_other_formats(path: Path) -> None:
    """Check the format that the newest start of a run has noted; before the first there is none."""
    for start in read_sessions(path)[-1:]:
        weights = Argument("model", f"{path}/checkpoints/step-N/model")
        problems = Argument("data", "PROBLEMS")
        instead = Message("start a new run from its weights: ", weights, " and ", problems)
        require_format(path, start, FORMAT, start.get("versions"), instead)


def dump_config(config: RunConfig, *, only_given: bool = False) -> str:
    """Convert the configuration to YAML, from which `RunConfig` reads an equal one.

    Args:
        config: of the run.
        only_given: leave out the settings that nobody gave, as `given_settings`.
    """
    from rlobj.base.yaml import dump_yaml

    settings = given_settings(config) if only_given else settings_of(config)
    return dump_yaml(settings)
