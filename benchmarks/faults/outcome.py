"""What one fault did to a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.programs import Trainer, compared, resumed_from, steps_done, write_config


@dataclass
class Outcome:
    """What one fault did to a run.

    Attributes:
        exit: exit code of the program that was hit; None if it ran on until it was killed here.
        lost: steps that were trained again, or are lost if the run could not be resumed.
        final: the final weights beside those of the undisturbed run.
        message: what the program said at the fault.
        resumed: what it said when it was resumed and that failed, or a warning.
        more: other numbers.
    """

    exit: int | None = None
    lost: int | None = None
    final: str = ""
    message: str = ""
    resumed: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass
class Place:
    """Where faults are tried.

    Attributes:
        folder: of all runs.
        policy: a tiny policy.
        name: of the fault; its folder is named after it.
    """

    folder: Path
    policy: Path
    name: str = "whole"

    def path(self, name: str) -> Path:
        """A file or folder of this fault."""
        (self.folder / self.name).mkdir(parents=True, exist_ok=True)
        return self.folder / self.name / name

    def config(self, **sections: Any) -> Path:
        """The configuration of this fault's run."""
        return write_config(self.path("run.yaml"), self.policy, **sections)

    def start(self, *words: str, name: str = "run", sections: Any = None, **variables: str | None):
        """Start a run in a new folder."""
        config, run = self.config(**(sections or {})), self.path(name)
        return Trainer(["--config", config, "--trust", "--out", run, *words], run, **variables)

    def resume(self, run: Path, *words: str, **variables: str | None) -> Trainer:
        """Resume a run."""
        return Trainer(["--resume", run, *words], run, **variables)

    def whole(self) -> Path:
        """The undisturbed run of eight steps; it is made once."""
        place = Place(self.folder, self.policy)
        run = place.path("run")
        if steps_done(run) < 8:
            code = place.start().end()
            assert code == 0, f"the undisturbed run failed, see {run.parent}"
        return run


def finished(
    place: Place, outcome: Outcome, run: Path, whole: Path, *words: str, **variables: str | None
) -> Outcome:
    """Resume the run once, and say how its weights compare with those of the undisturbed run."""
    done, starts = max(0, steps_done(run)), len(resumed_from(run))
    trainer = place.resume(run, *words, **variables)
    code = trainer.end()
    if code == 0:
        outcome.lost = done - min([done, *resumed_from(run)[starts:]])
        warned = [line for line in trainer.log.read_text().splitlines() if "WARNING" in line]
        outcome.resumed = outcome.resumed or " ".join(warned)[:300]
    else:
        outcome.lost = done
        outcome.resumed = f"exit {code}: {trainer.message()}"
    outcome.final = compared(run, whole)
    return outcome


Fault = Callable[[Place], Outcome]


def left_behind() -> list[str]:
    """Command lines of processes below this one that should have ended."""
    return [" ".join(p.cmdline()) for p in psutil.Process().children(recursive=True)]
