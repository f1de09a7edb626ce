"""Grade the stored responses of an evaluation again, without its model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.showing import shown
from rlobj.data import Problem
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.grade_changes import GradeChange, RegradedBenchmark, Regrading
from rlobj.evaluation.graded import GradedBenchmark
from rlobj.evaluation.progress import followed
from rlobj.evaluation.publishing import publish
from rlobj.evaluation.responses import blocks_of, grade_stored, open_keys
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
    deadline: float | None = None,
    trust: bool = False,
    progress: bool = True,
    callback: EvaluationCallback | None = None,
) -> EvaluationResult:
    """Grade the stored responses of an evaluation again; its grades and results are replaced.

    The result's `regrading` compares the grades before and after. DIR/regraded/BEFORE-to-AFTER.json
    has them, with the settings of the reward before, so that nothing is lost.

    Args:
        path: folder of the evaluation.
        reward: a kind, such as "math", "math_verify" or "exact", or "file.py:function"; None = as
            before. Going back to an earlier reward takes the settings that it had.
        deadline: seconds of processor time for one answer (math, math_verify); None = as before.
        trust: import the code that the reward of the folder is.
        progress: show the progress on stderr. Without effect beside a callback.
        callback: receives the events.

    Raises:
        ConfigError: no evaluation there, no responses, another type of reward, settings that the
            reward does not have, or code without `trust`.
        DataError: a gold answer that math-verify cannot read.
    """
    if not isinstance(reward, str | None):
        raise ConfigError(f"reward is {shown(reward)}; expected a kind or 'file.py:function'")
    Samples.open(path)  # an error, before the folder is locked
    samples = Samples(path)
    with followed(callback, progress, "grading ") as callback, samples.locked():
        samples.read(repair=True)  # files of killed processes would bring old grades back
        settings, problems = samples.settings(), samples.problems()
        again, rewards, home = Samples(), dict[str, Any](), Path.cwd()
        again.responses = samples.responses
        for name, recorded in settings["benchmarks"].items():
            earlier = [recorded["reward"], *_rewards_before(settings, name)]
            changed = _changed(earlier, reward, deadline)
            if not trust:
                named = {} if reward is None else {"rewards": reward_settings(reward)}
                require_trust(path, {"rewards": changed.model_dump(mode="json")}, named)
            _grade(changed.seen_from(home), name, problems.get(name, []), again, callback)
            rewards[name] = changed.recorded()
        regrading = _compare(samples, again, settings["benchmarks"], rewards)
        regrading.path.parent.mkdir(exist_ok=True)
        text = json.dumps({**session("regraded"), **regrading.to_dict()}, indent=1) + "\n"
        samples.write(f"regraded/{regrading.path.name}", text)
        samples.rewrite_grades(again.grades)
        benchmarks = settings["benchmarks"]
        before = {name: recorded["reward"] for name, recorded in benchmarks.items()}
        regraded = {**session("regraded"), "rewards_before": before}
        settings.setdefault("sessions", []).append(regraded)
        for name, recorded in benchmarks.items():
            recorded["reward"] = rewards[name]
        samples.write_settings(settings)
        return publish(samples, callback, regrading)


def _rewards_before(settings: Mapping[str, Any], benchmark: str) -> Iterator[Mapping[str, Any]]:
    """The rewards that graded a benchmark before it was graded again, the newest first."""
    for recorded in reversed(settings.get("sessions", [])):
        if (reward := recorded.get("rewards_before", {}).get(benchmark)) is not None:
            yield reward


def _changed(
    earlier: Sequence[Mapping[str, Any]], reward: str | None, deadline: float | None
) -> Reward:
    """The reward that grades now.

    Args:
        earlier: settings of the rewards that graded before, the newest first. The newest one of
            the same kind keeps its other settings, so that going back gives the grades before.
        reward: a kind or the path of a function; None = the newest.
        deadline: in seconds, for a reward that has one; None = its own.
    """
    named = dict(earlier[0] if reward is None else reward_settings(reward))
    settings = next((dict(used) for used in earlier if used.items() >= named.items()), named)
    kind = Reward.registry.get(settings["kind"])
    if deadline is not None and (kind is None or "deadline" in kind.model_fields):
        settings["deadline"] = deadline
    return Reward.build(settings)


def _grade(
    reward: Reward,
    name: str,
    problems: Sequence[Problem],
    samples: Samples,
    callback: EvaluationCallback,
) -> None:
    by_id = {problem.id: problem for problem in problems}
    total = sum(key[0] == name and key[1] in by_id for key in samples.responses)
    with reward.open() as grader:
        grader.check(problems)
        for keys in blocks_of(open_keys(samples, name, problems, 0), BLOCK):
            grade_stored(grader, by_id, name, samples, total, callback, keys)


def _compare(
    before: Samples,
    after: Samples,
    benchmarks: Mapping[str, Mapping[str, Any]],
    rewards: Mapping[str, Mapping[str, Any]],
) -> Regrading:
    """Compare the grades of the responses that have one on both sides."""
    problems = before.problems()
    old = {key: grade for key, grade in before.grades.items() if key in after.grades}
    new = {key: after.grades[key] for key in old}
    golds = {(name, problem.id): problem.answer for name in problems for problem in problems[name]}
    changes = [
        GradeChange(key, golds[key[:2]], grade, new[key])
        for key, grade in old.items()
        if grade.verdict != new[key].verdict
    ]
    regraded = {}
    for name, settings in benchmarks.items():
        of_name = problems.get(name, ())
        first, second = (GradedBenchmark.of(before, name, of_name, grades) for grades in (old, new))
        if first.problems:
            regraded[name] = RegradedBenchmark.of(first, second, settings["reward"], rewards[name])
    rewards_before = [settings["reward"] for settings in benchmarks.values()]
    kinds = [_kinds(rewards_before), _kinds(rewards.values())]
    assert before.path is not None
    path = before.path / "regraded" / f"{'-to-'.join(kinds)}.json"
    return Regrading(len(after.grades), regraded, tuple(changes), path)


def _kinds(rewards: Iterable[Mapping[str, Any]]) -> str:
    return "+".join(dict.fromkeys(reward["kind"] for reward in rewards))
