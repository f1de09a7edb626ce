"""Grade the stored responses of an evaluation again, without its model."""

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rlobj.base.paths import located_target, nearby
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.progress import followed
from rlobj.evaluation.publishing import publish
from rlobj.evaluation.responses import sample_and_grade
from rlobj.evaluation.result import EvaluationResult
from rlobj.installation import session
from rlobj.rewards import Reward
from rlobj.runs.evaluation_samples import Samples
from rlobj.settings.layers import reward_settings
from rlobj.settings.trust import require_trust

BLOCK = 256
"""Responses graded at a time."""


def regrade(
    path: Path | str,
    *,
    reward: str | None = None,
    out: Path | str | None = None,
    trust: bool = False,
    progress: bool = True,
    callback: EvaluationCallback | None = None,
) -> EvaluationResult:
    """Grade the stored responses of an evaluation again, into a new folder.

    The evaluation stays as it is. `compare` says which grades differ.

    Args:
        path: folder of the evaluation.
        reward: a kind, such as "math", "math_verify" or "exact", or "file.py:function"; None = as
            before.
        out: the new folder; None = the evaluation's name with the reward's kind behind it.
        trust: import the code that the reward of the folder is.
        progress: show the progress on stderr. Without effect beside a callback.
        callback: receives the events.

    Raises:
        ConfigError: no evaluation there, no responses, another type of reward, settings that the
            reward does not have, a new folder that is in use, or code without `trust`.
    """
    samples = Samples.open(path)
    settings, problems = samples.settings(), samples.problems()
    benchmarks, again = settings["benchmarks"], Samples()
    again.responses, rewards = samples.responses, dict[str, Reward]()
    chosen = {} if reward is None else reward_settings(reward)
    if "target" in chosen:
        chosen["target"] = located_target(chosen["target"], Path.cwd())
    for name, recorded in benchmarks.items():
        rewards[name] = _changed(recorded["reward"], chosen)
        if not trust:
            settings_of_reward = {"rewards": rewards[name].model_dump(mode="json")}
            require_trust(path, settings_of_reward, {"rewards": chosen})
    recorded = {
        name: {**benchmark, "reward": rewards[name].recorded()}
        for name, benchmark in benchmarks.items()
    }
    kinds = "-".join(dict.fromkeys(str(each["reward"]["kind"]) for each in recorded.values()))
    target = Samples(Path(f"{Path(path).absolute()}-{kinds}") if out is None else out)
    target.require_free(new=True)
    unused: Any = None  # of sampling: all responses are stored
    grade = partial(sample_and_grade, unused, unused, settings=unused, count=0, seed=0, block=BLOCK)
    with followed(callback, progress, "grading ") as callback:
        for name, changed in rewards.items():
            of = problems.get(name, [])
            with changed.seen_from(Path.cwd()).open() as grader:
                grader.check(of)
                grade(problems=of, grader=grader, benchmark=name, samples=again, callback=callback)
        sessions = [*settings.get("sessions", []), {**session("regraded"), "from": str(path)}]
        with target.locked():
            target.require_free(new=True)
            target.write_problems(problems)
            target.add(samples.responses)
            target.grade(again.grades)
            # The folder is an evaluation from here on, and not if this process is killed before.
            target.write_settings({**settings, "benchmarks": recorded, "sessions": sessions})
            result = publish(target, callback)
        sides = shlex.join(str(nearby(folder)) for folder in (samples.path, target.path) if folder)
        callback.noted(f"to see which grades changed: rlobj eval compare {sides}")
        return result


def _changed(recorded: Mapping[str, Any], chosen: Mapping[str, Any]) -> Reward:
    """The reward that grades now, from the settings of a kind; none = the one before.

    One of the same kind keeps the settings that are `recorded` of it.
    """
    return Reward.build(recorded if recorded.items() >= chosen.items() else dict(chosen))
