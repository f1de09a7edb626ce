"""What one fault did to a run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.faults.programs import Serving, Trainer, runs
from rlobj.config.presets import merge
from rlobj.config.run_folder import read_sessions
from rlobj.training import RunDirectory


@dataclass
class Outcome:
    """What one fault did to a run.

    Attributes:
        exit: exit code of the program that was hit; None if it ran on until it was killed here.
        lost: steps that were trained again, or are lost if the run could not be resumed; of several
            runs, a list.
        final: the final weights beside those of the undisturbed run.
        message: what the program said at the fault.
        resumed: what it said when it was resumed and that failed, or a warning.
        more: other numbers.
    """

    exit: int | None = None
    lost: Any = None
    final: str = ""
    message: str = ""
    resumed: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where faults are tried.

    Attributes:
        folder: of all runs.
        policy: a tiny policy.
        name: of the fault; its folder is named after it.
        server: that the runs sample from; None = they sample themselves.
        waits: settings of `sampling.server`.
    """

    folder: Path
    policy: Path
    name: str = ""
    server: Serving | None = None
    waits: dict[str, float] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """A file or folder of this fault."""
        (self.folder / self.name).mkdir(parents=True, exist_ok=True)
        return self.folder / self.name / name

    def start(self, *words: str, name: str = "run", **sections: Any) -> Trainer:
        """Start a run of eight steps in a new folder; sections override single settings."""
        from tiny import eight_steps  # pyright: ignore[reportMissingImports]

        settings: dict[str, Any] = {}
        if self.server:  # saved by its end or a failure only; sampling takes a second
            server = {"url": self.server.url, **self.waits}
            sizes = {"prompts_per_step": 16, "max_tokens": 48}
            settings = {"sampling": {"engine": "vllm-server", "server": server, **sizes}}
            settings["checkpoint"] = {"every": 50}
        config = eight_steps(self.policy, **merge(settings, sections))
        file, run = runs.write_config(config, self.path("run.yaml")), self.path(name)
        return self._trainer(run, "--config", file, "--trust", "--out", run, *words)

    def resume(self, run: Path, *words: str) -> Trainer:
        """Resume a run."""
        return self._trainer(run, "--resume", run, *words)

    def _trainer(self, run: Path, *words: Any) -> Trainer:
        return Trainer(words, run, self.server.variables if self.server else {})

    def whole(self) -> Path:
        """The undisturbed run; it is made once."""
        place = replace(self, name="whole-served" if self.server else "whole", waits={})
        run = place.path("run")
        if RunDirectory(run).steps_saved() < 8:
            shutil.rmtree(run, ignore_errors=True)
            trainer = place.start()
            assert trainer.end() == 0, f"the undisturbed run: {trainer.message()}"
        return run


Fault = Callable[[Place], Outcome]


def hit(
    place: Place,
    step: int,
    fault: Callable[[Trainer], Any],
    *words: str,
    then: Callable[[Path], Any] = lambda run: None,
    name: str = "run",
) -> Outcome:
    """Do a fault to a run, resume it when it has ended, and compare its final weights.

    Args:
        place: of the run.
        step: that the run has made before.
        fault: what is done.
        words: of the resumption.
        then: is done to the run's folder, or the server, when the run has ended.
        name: of the run's folder.
    """
    whole, trainer = place.whole(), place.start(name=name)
    trainer.wait_for_step(step)
    began = time.monotonic()
    fault(trainer)
    run, outcome = trainer.run, Outcome(trainer.end(), message=trainer.message())
    seconds, saved = time.monotonic() - began, RunDirectory(run).steps_saved()
    done, starts = max(0, trainer.done()), len(read_sessions(run))
    outcome.more = {"seconds until it ended": round(seconds, 1)}
    outcome.more |= {"steps done": done, "steps saved": saved}
    then(run)
    again = place.resume(run, *words)
    if (code := again.end()) != 0:
        outcome.lost, outcome.resumed = done, f"exit {code}: {again.message()}"
    else:
        outcome.lost = done - min([done, *(each["step"] for each in read_sessions(run)[starts:])])
        warned = [line for line in again.log.read_text().splitlines() if "WARNING" in line]
        outcome.resumed = " ".join(warned)[:300]
    outcome.final = compared(run, whole)
    return outcome


def compared(run: Path, whole: Path) -> str:
    """The final weights beside those of the undisturbed run, in words."""
    step, last = (RunDirectory(each).steps_saved() for each in (run, whole))
    if step != last:
        return f"not finished: saved to step {step} of {last}"
    far = runs.distance(runs.weights(run), runs.weights(whole))
    return f"differ by at most {far:.1e}" if far else "bit-identical"
