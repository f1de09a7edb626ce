"""Ending a run for a reason: the findings that it is asked to stop on, and a note of any error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from rlobj.base.errors import RunError
from rlobj.base.files import write_whole
from rlobj.config.run_folder import STOP_FILE, best_checkpoint, held_out_accuracies
from rlobj.insight.diagnosis import Finding
from rlobj.training.loop import stages
from rlobj.training.loop.parts import Parts


def stop_on_findings(parts: Parts) -> None:
    """Save and stop the run, on all ranks together, if the last step began a finding it stops on.

    A finding that held when the run was resumed does not stop it again.

    Raises:
        RunError: `training.stop_on` lists the finding.
    """
    names = parts.config.training.stop_on
    if not names:
        return
    begun = next((each for each in parts.begun if each.name in names), None)
    if (begun := parts.comm.broadcast(begun)) is not None:
        stages.save(parts, now=True)
        raise RunError(_reason(parts, begun), finding=begun.name)


def _reason(parts: Parts, finding: Finding) -> str:
    """Why the run stops, its best checkpoint before that, and what to type."""
    run, rate = parts.run.path, parts.config.training.learning_rate / 10
    best = best_checkpoint(run, before=finding.since)
    found = "none was saved with a held-out accuracy above 0"
    if best is not None:
        found = f"{best}, held-out accuracy {held_out_accuracies(run)[best]:.3f}"
    advice = f"To go on with the same settings:\n  rlobj train --resume {run}"
    if "training.learning_rate" in finding.cure:
        advice = (
            "A resumed run keeps its learning rate. Start a new run with a lower one:\n"
            f"  rlobj train ... --set training.learning_rate={rate:.1g}"
        )
    return (
        f"training.stop_on lists {finding.name}.\n{finding}\n"
        f"Best checkpoint before step {finding.since}: {found}\n{advice}"
    )


@contextmanager
def noted(parts: Parts) -> Iterator[None]:
    """Inside, an error that ends the run is noted in its folder, where `diagnose` reads it."""
    try:
        yield
    except RunError as error:
        if parts.comm.rank == 0:
            step = parts.metrics.get("step", parts.learner.steps)
            note = {"step": step, "finding": error.finding, "message": str(error)}
            write_whole(parts.run.path / STOP_FILE, json.dumps(note).encode())
        raise
