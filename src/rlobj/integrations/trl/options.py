"""The options of an ObjectiveTrainer, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.runs.columns import refuse_recorded
from rlobj.settings.presets import Preset, load_preset, merge
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scores import ScoreConfig, require_scores


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a trainer.

    Attributes:
        objective: a Preset if a name or path was given.
        preset: that name or path; None = the objective is of no preset.
        advantages: auto, trl or objective.
        selection: current or old.
        record: true, false, or the folder of the record.
        output: settings of the record.
        columns: `data` or `reward`, by column.
        scores: frozen models, by name.
    """

    objective: Any
    preset: str | None
    advantages: str
    selection: str
    record: bool | str | Path
    output: dict[str, Any]
    columns: dict[str, str]
    scores: dict[str, ScoreConfig]


def read_options(chosen: Mapping[str, Any]) -> Options:
    """The arguments of a trainer by name, checked.

    Raises:
        ConfigError: one has a value that is not allowed.
    """
    objective, name, training = chosen["objective"], None, {}
    columns, scores = chosen["columns"] or {}, chosen["scores"] or {}
    if isinstance(objective, str | Path):
        name, objective = str(objective), load_preset(objective)
    if isinstance(objective, Preset):
        name = name or str(objective.path)
        training = objective.config.get("training") or {}
        columns = {**(objective.config.get("columns") or {}), **columns}
        scores = merge(objective.config.get("scores") or {}, scores)
    if (advantages := chosen["advantages"]) not in ("auto", "trl", "objective"):
        raise ConfigError(f"advantages={advantages!r}; expected 'auto', 'trl' or 'objective'")
    selection = chosen["selection"] or training.get("selection", "current")
    if selection not in ("current", "old"):
        raise ConfigError(f"selection={selection!r}; expected 'current' or 'old'")
    record = chosen["record"]
    path = isinstance(record, str | Path)
    if not isinstance(record, bool) and (not path or Path(record).is_file()):
        raise ConfigError(f"record={record!r}; expected True, False, or the path of a folder")
    output: Any = chosen["output"] or {}
    run = RunConfig(output=output, columns=columns, scores=scores)
    if isinstance(objective, Preset):
        require_scores(run.scores, objective.objective.read_scores)
    refuse_recorded(run.columns)
    for column, source in run.columns.items():
        if ":" in source:
            raise ConfigError(
                f"columns.{column}={source}: TRL has no functions of tokens, which `rlobj train` "
                "calls. Expected data or reward"
            )
    return Options(objective, name, advantages, selection, record, output, run.columns, run.scores)
