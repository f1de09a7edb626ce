"""A run that is about to begin or to go on: what callbacks are told before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rlobj.runs.run_folder import RunFolder
from rlobj.settings.layers import Layer
from rlobj.settings.run_config import RunConfig


class OpenedRun(NamedTuple):
    """A run whose settings are checked. Nothing is written yet.

    Attributes:
        path: its folder.
        config: its configuration; that of a new run has absolute paths.
        layers: the layers of the configuration, lowest first; of a resumed run, its changes.
        processes: how many processes train.
        done: the steps done before.
        resumed: it goes on.
    """

    path: Path
    config: RunConfig
    layers: list[Layer]
    processes: int
    done: int = 0
    resumed: bool = False

    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl of the steps done before."""
        lines = RunFolder(self.path).lines() if self.resumed else []
        return [line for line in lines if line["step"] <= self.done]
