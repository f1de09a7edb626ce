"""Where a model can be: a folder, or an id on the Hugging Face hub."""

from __future__ import annotations

from rlobj.base.errors import ConfigError, nearest, reported
from rlobj.base.folders import refuse_others
from rlobj.base.paths import path_of
from rlobj.base.targets import require_file
from rlobj.data.sources import require_source, source_names
from rlobj.runs.checkpoints import newest_checkpoint
from rlobj.runs.layout import is_run
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.starting import refuse_senseless
from rlobj.settings.trust import named_code


def require_inputs(config: RunConfig) -> None:
    """Check what a run is about to learn from, without loading a model or problems.

    Raises:
        ConfigError: as `refuse_senseless` and `require_model`.
        DataError: as `require_source`.
    """
    refuse_senseless(config)
    models = [(f"scores.{name}.model", score.model) for name, score in config.scores.items()]
    models += [("model.name", config.model.name)]
    models += [("rewards.model", name) for name in config.rewards.models]
    for setting, name in models:
        if name not in (None, "policy"):
            with reported(ConfigError, setting, ConfigError):
                require_model(name)
    for source in (*source_names(config.data.source), *source_names(config.data.test)):
        require_source(source)
    settings = settings_of(config)
    sections = ("rewards", "columns", "environment")
    for target in named_code({name: settings[name] for name in sections}):
        if ".py:" in target:
            require_file(target)


def require_model(name: str) -> None:
    """Check that a name can be a model, without loading it.

    A name that looks like a path must be a folder. Any other name is taken as a hub id.

    Raises:
        ConfigError: the name is a file, a run, or a folder that is not there or has no model.
    """
    path = path_of(name)
    if path.exists() and not path.is_dir():
        what = "a file" if path.is_file() else "a pipe or a device"
        raise ConfigError(f"{name} is {what}; a model is a folder or a hub id")
    if is_run(path):
        newest = newest_checkpoint(path)
        folder = f"has its model in {newest / 'model'}" if newest else "has no checkpoint yet"
        raise ConfigError(f"{name} is a run, not a model: it {folder}")
    if path.is_dir() and not (path / "config.json").is_file():
        raise ConfigError(
            f"{name} is a folder without config.json; a model is one that save_pretrained wrote"
        )
    refuse_others(path)
    local = name.startswith((".", "~", "/")) or len(path.parts) > 2
    beside = path.parent if len(path.parts) > 1 else None
    if path.is_dir() or not (local or (beside is not None and beside.is_dir())):
        return
    siblings = map(str, path.parent.iterdir()) if path.parent.is_dir() else ()
    advice = nearest(name, siblings, spell_out=False)
    raise ConfigError(f"there is no run or model folder '{name}'.{advice}")


def require_weights(name: str | None) -> None:
    """Check that a folder has the model's weights, and not its config.json alone.

    Raises:
        ConfigError: it has none.
    """
    path = path_of(name or "")
    if not (path / "config.json").is_file() or any(
        next(path.glob(pattern), None) for pattern in ("*.safetensors", "*.bin")
    ):
        return
    raise ConfigError(
        f"{name} has a config.json and no weights: expected *.safetensors or *.bin beside it. "
        "Without weights, a model can only be estimated; name a folder that has them, or a hub id"
    )
