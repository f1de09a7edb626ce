"""Each check of the diagnosis on metrics made up for it: it fires, and its neighbours do not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.insight.diagnosis import CHECKS, Watch
from rlobj.insight.diagnosis.checks import NAMES, Check
from rlobj.insight.diagnosis.diagnosing import PAGE
from rlobj.insight.diagnosis.history import History
from rlobj.runs.configuration import dump_config
from rlobj.runs.layout import STOP_FILE
from rlobj.settings.building import compose

Line = dict[str, Any]
Change = Line | Callable[[int], Line]
HEALTHY: Line = {}
STUCK = {"reward/mean": 0.4, "reward/accuracy": 0.4}


def healthy(step: int) -> Line:
    """A step of a run that learns, slowly."""
    accuracy = 0.4 + 0.3 * min(step / 100, 1)
    return {
        "step": step,
        "reward/mean": accuracy,
        "reward/std": math.sqrt(accuracy * (1 - accuracy)),
        "reward/accuracy": accuracy,
        "reward/groups": 32.0,
        "reward/undecided": 0.0,
        "reward/no_answer_share": 0.02,
        "response/count": 256.0,
        "response/truncated": 0.01,
        "response/truncated_right": 0.0,
        "groups/without_signal_share": 0.2,
        "policy/entropy": 1.0 - 0.6 * min(step / 100, 1),
        "policy/ratio_max": 2.0,
        "policy/kl_old": 0.002,
        "train/grad_norm": 1.0,
        "train/skipped_updates": 0.0,
        "tokens/dropped": 3.0,
        "objective/kept_fraction": 0.999,
        "tokens/step": 5000.0,
        "sampler/logprob_gap": 1e-7,
        "sampler/kl": 1e-9,
    }


def changed(change: Change, step: int) -> Line:
    return {**healthy(step), **(change(step) if callable(change) else change)}


def watched(change: Change = HEALTHY, steps: int = 40, **settings: Any) -> Watch:
    """The findings of a healthy run with some changed metrics.

    Args:
        change: metrics that differ, of each step or of all; None leaves one out.
        steps: number of steps.
        settings: sections of the configuration.
    """
    watch = Watch(compose("stapo", [("test", settings)]))
    for step in range(1, steps + 1):
        line = changed(change, step)
        watch.add({name: value for name, value in line.items() if value is not None})
    return watch


def names(watch: Watch) -> set[str]:
    return set(watch.findings)


def spikes(*steps: int) -> Watch:
    """A run whose sampler is far from the policy at some steps."""
    return watched(lambda step: {"sampler/logprob_gap": 1.0 if step in steps else 0.0})


def test_a_healthy_run_has_no_findings() -> None:
    assert names(watched(steps=150)) == set()


def test_every_finding_has_its_section_on_the_page() -> None:
    page = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    section = page.partition("\n## The findings\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.+)$", section, re.MULTILINE) == list(NAMES)


@pytest.mark.parametrize(
    "check", CHECKS, ids=lambda check: f"{check.name}-{check.condition.__name__}"
)
def test_a_check_says_nothing_where_its_metrics_are_absent(check: Check) -> None:
    needed = {metric.replace("*", "teacher") for metric in check.reads} - {"reward/mean"}
    watch = watched({**dict.fromkeys(needed), "reward/mean": 0.0}, **TAUGHT)
    assert not watch.history.inert
    assert check.condition(watch.history) is None


CUT = {"response/truncated": 0.7, "response/truncated_right": None}
NO_ANSWER = {"reward/no_answer_share": 0.7, "reward/mean": 0.3}
BROKEN = {"train/grad_norm": math.nan, "train/skipped_updates": 1.0}
IDLE = {"reward/groups": 0.0, "train/grad_norm": None, "train/skipped_updates": 1.0}
NOTHING_RIGHT = {
    "groups/without_signal_share": 1.0,
    "reward/accuracy": 0.0,
    "reward/mean": 0.0,
    "reward/std": 0.0,
}
BONUS = {"objective": {"penalties": [{"kind": "entropy_bonus", "coefficient": 2.0}]}}
TEACHER = {"score/teacher/gap": -0.2, "score/teacher/end_gap": -0.1}
TAUGHT = {
    "scores": {"teacher": {"run": "runs/x"}},
    "objective": {"shape": "advantage + clip(teacher_gap, -5, 5)"},
}
CRITIC: dict[str, Any] = {
    "scores": {"critic": {"value": True, "value_warmup": 25}},
    "objective": {"advantage": "gae", "values": [{"kind": "clipped_squared"}]},
}
BLIND = {"value/explained_variance": 0.0}
SICK: list[tuple[str, Change, dict[str, Any]]] = [
    ("collapse", lambda step: {"reward/accuracy": 0.4 - 0.02 * min(max(step - 15, 0), 20)}, {}),
    ("no-signal", {"groups/without_signal_share": 0.9}, {}),
    ("no-signal", {"objective/kept_fraction": 0.0}, {}),
    ("constant-reward", NOTHING_RIGHT, {}),
    ("constant-reward", {**NOTHING_RIGHT, "reward/accuracy": 1.0, "reward/mean": 1.0}, {}),
    ("entropy", lambda step: {"policy/entropy": 1 / step, **STUCK}, {}),
    ("entropy", lambda step: {"policy/entropy": 0.1 * step, "reward/mean": 0.4}, {}),
    ("entropy", lambda step: {"policy/entropy": 0.1 * step, "reward/mean": 0.4}, BONUS),
    ("update-too-large", lambda step: {"policy/ratio_max": 12.0 if step % 3 else 1.0}, {}),
    ("update-too-large", {"policy/kl_old": 0.3}, {}),
    ("update-too-large", lambda step: BROKEN if step > 20 else {}, {}),
    ("sampler-drift", {"sampler/kl": 0.2}, {"sampling": {"async_depth": 1}}),
    ("sampler-drift", lambda step: {"sampler/logprob_gap": 1e-4 * step}, {}),
    ("truncation", {"response/truncated": 0.5}, {}),
    ("truncation", {**CUT, "reward/accuracy": 0.2}, {}),
    ("truncation", {"response/truncated": 0.7, **NO_ANSWER}, {}),
    ("verifier-trouble", {"reward/undecided": 20.0}, {}),
    ("verifier-trouble", {"reward/unreadable_share": 0.06, **STUCK}, {}),
    ("verifier-trouble", {"reward/no_answer_share": 0.6, **STUCK}, {}),
    ("verifier-trouble", lambda step: {"reward/no_answer_share": min(step / 100, 0.3)}, {}),
    ("teacher-trouble", {**TEACHER, "score/teacher/end_gap": -9.0}, TAUGHT),
    ("value-trouble", BLIND, CRITIC),
    ("value-trouble", {"value/explained_variance": -0.4, "reward/accuracy": None}, CRITIC),
    ("inert-setting", {"tokens/dropped": 0.0}, {}),
    ("inert-setting", {}, {"training": {"updates_per_step": 1}}),
]


@pytest.mark.parametrize(("name", "change", "settings"), SICK)
def test_a_sick_run_has_the_finding_and_no_other(name, change, settings):
    watch = watched(change, **settings)
    assert names(watch) == {name}
    finding = watch.findings[name]
    assert finding.evidence
    assert finding.cure
    assert finding.page == f"docs/diagnosis.md#{name}"
    assert 1 <= finding.since <= finding.until <= 40
    assert all(math.isfinite(value) for value in finding.numbers.values())


def test_every_name_has_a_sick_run() -> None:
    assert {name for name, *_ in SICK} == set(NAMES)


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        ({**CUT, "response/truncated_right": 0.8}, {}),  # two digits need no end of the response
        (CUT, {}),  # 0.4 of all are right: too many to tell
        ({"groups/without_signal_share": 0.9, "reward/accuracy": 0.97}, {}),  # a solved task
        ({"groups/without_signal_share": 0.7}, {}),  # half are always right, the others never
        ({"tokens/dropped": 0.0}, {"objective": {"drop": "(advantage < 0) & (ratio > 10)"}}),
        # without a rule, an update keeps no token if no response of it is decided
        ({"objective/kept_fraction": 0.0}, {"objective": {"drop": None}}),
        ({"sampler/logprob_gap": 0.011}, {}),  # bfloat16: 0.01 nats from the first step
        (lambda step: IDLE if step % 5 < 3 else {}, {}),  # dynamic sampling found no group
        (lambda s: {"reward/no_answer_share": 0.9 - s / 50, "reward/mean": 0.2 + s / 50}, {}),
        (lambda s: {"reward/unreadable_share": 0.06, "reward/mean": 0.2 + s / 50}, {}),
        ({"reward/undecided": 8.0}, {}),
        # the mask of truncated responses of another trainer may leave no token
        ({"objective/kept_fraction": 0.0, "tokens/step": 0.0}, {}),
        (TEACHER, TAUGHT),  # it only guides
        (lambda step: {"value/explained_variance": 0.0 if step < 35 else 0.1}, CRITIC),
        ({**BLIND, "reward/accuracy": 0.97, "reward/mean": 0.97}, CRITIC),  # returns are alike
        (BLIND, {"objective": {}}),
    ],
)
def test_what_is_sick_in_one_run_is_sound_in_another(change, settings):
    assert names(watched(change, **settings)) == set()


def test_a_finding_knows_its_first_and_last_step_and_metrics_count_what_holds() -> None:
    assert watched().metrics() == {"diagnosis/findings": 0}
    spiked = spikes(25, 33)
    finding = spiked.findings["sampler-drift"]
    assert (finding.since, finding.until, finding.holds) == (25, 37, False)
    assert finding.when == "between steps 25 and 37"
    assert spiked.metrics() == {"diagnosis/findings": 0, "diagnosis/sampler-drift": 0}
    assert spikes(40).findings["sampler-drift"].when == "since step 40"
    assert spikes(40).metrics() == {"diagnosis/findings": 1, "diagnosis/sampler-drift": 1}


def test_a_value_is_judged_when_it_had_time_to_learn() -> None:
    warmed = {
        **CRITIC,
        "scores": {"critic": {"value": True, "value_warmup": 38, "learning_rate": 1}},
    }
    for settings, first in ((CRITIC, 40), (warmed, 43)):  # five steps after its warm-up
        assert watched(BLIND, first - 1, **settings).findings == {}
        [finding] = watched(BLIND, first, **settings).findings.values()
        assert (finding.name, finding.since) == ("value-trouble", first)
    assert finding.evidence.startswith("the value explains 0.0% of the variance")
    assert "scores.critic.learning_rate=1," in finding.cure


def test_only_findings_that_begin_are_reported() -> None:
    watch = watched(steps=10)
    sick = [{**healthy(step), "response/truncated": 0.9} for step in range(11, 15)]
    begun = [[finding.name for finding in watch.add(line)] for line in sick]
    assert begun == [[], ["truncation"], [], []]


def test_a_run_without_accuracy_is_not_told_one() -> None:
    """The checks that compare shares of right responses are silent, and texts name the reward."""
    number = {"reward/accuracy": None, "response/truncated_right": None}
    assert names(watched(number, steps=150)) == set()
    cut = {**number, "response/truncated": 0.9}
    assert names(watched(cut)) == set()
    assert names(watched({**number, "groups/without_signal_share": 0.7})) == set()
    equal = {**number, "groups/without_signal_share": 1.0, "reward/mean": -0.25}
    [found] = watched(equal).findings.values()
    assert (found.name, found.numbers) == ("no-signal", {"share": 1.0})
    assert found.evidence.endswith("so that their advantages are 0 (mean reward -0.25)")
    [found] = watched({**equal, "reward/std": 0.0}).findings.values()
    assert found.name == "constant-reward"
    stuck = {**number, "reward/mean": 0.4}
    falling = watched(lambda step: {**stuck, "policy/entropy": 1 / step}).findings
    assert "the reward did not rise (mean reward 0.4)" in falling["entropy"].evidence
    rising = watched(lambda step: {**stuck, "policy/entropy": 1.0 + step}).findings
    assert "and the reward did not (mean reward 0.4)" in rising["entropy"].evidence


def test_a_setting_that_the_preset_leaves_without_effect_is_no_finding() -> None:
    grpo = Watch(compose("grpo"))
    grpo.add(healthy(1))
    assert grpo.history.inert == ()
    assert compose("grpo").resolved_objective().explain(1).inert


def test_answers_that_are_wrong_without_a_comparison_are_named_by_cause() -> None:
    shares = {"reward/unreadable_share": 0.02, "reward/timeout_share": 0.041}
    rising = watched(lambda step: shares if step >= 20 else dict.fromkeys(shares, 0.0))
    found = rising.findings["verifier-trouble"]
    assert found.evidence.endswith(": timeout 4.1%, unreadable 2.0%, no answer 2.0%")
    assert names(watched({"reward/too_large_share": 0.01})) == set()


# Reading runs.


def write_run(folder: Path, change: Change = HEALTHY, steps: int = 40) -> Path:
    folder.mkdir()
    (folder / "config.resolved.yaml").write_text(dump_config(compose("stapo")))
    lines = [json.dumps(changed(change, step)) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_a_run_and_several_runs(tmp_path: Path) -> None:
    sound = write_run(tmp_path / "a")
    sick = write_run(tmp_path / "b", {"response/truncated": 0.5})
    assert rlobj.diagnose(sound).findings == ()
    both = rlobj.diagnose([sound, str(sick)])
    assert [(each.run, len(each.findings)) for each in both.runs] == [(sound, 0), (sick, 1)]
    assert [finding.name for finding in both.findings] == ["truncation"]
    unchecked = ("teacher-trouble", "value-trouble")
    assert both.runs[0].checked == tuple(name for name in NAMES if name not in unchecked)
    assert both.runs[0].unchecked == unchecked
    told = json.loads(both.to_json())["runs"][1]["findings"][0]
    assert (told["name"], told["since"], told["numbers"]["share"]) == ("truncation", 3, 0.5)
    assert "truncation, since step 3: 50% of the responses are cut" in repr(both)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run: there is no such folder"):
        rlobj.diagnose(tmp_path / "none")
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        rlobj.diagnose([])
    empty = write_run(tmp_path / "empty", steps=0)
    with pytest.raises(ConfigError, match="no finished step yet"):
        rlobj.diagnose(empty)


def test_the_error_that_ended_a_run_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    note = {"step": 41, "finding": "sampler-drift", "message": "gap \x1b[2J of 3 nats"}
    (run / STOP_FILE).write_text(json.dumps(note))
    [finding] = rlobj.diagnose(run).findings
    assert (finding.name, finding.since) == ("sampler-drift", 41)
    assert finding.evidence == "the run stopped at step 41: gap ␛[2J of 3 nats"
    (run / STOP_FILE).write_text(json.dumps({**note, "finding": None}))
    [diagnosis] = rlobj.diagnose(run).runs
    assert diagnosis.findings == ()
    assert diagnosis.notes == ("the run stopped at step 41: gap ␛[2J of 3 nats",)


def test_code_that_the_preset_file_of_a_run_names_is_not_imported(tmp_path):
    code, preset = tmp_path / "theirs.py", tmp_path / "theirs.yaml"
    code.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    preset.write_text(f"base: grpo\nobjective:\n  drop: \"custom('{code}:Rule')\"\n")
    config = compose("grpo", [])
    assert isinstance(History(config.model_copy(update={"preset": str(preset)})).inert, tuple)
    assert not (tmp_path / "executed").exists()
