"""Each benchmark measures for real, at a tiny size; wrong numbers fail."""

from __future__ import annotations

import hashlib
import json
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from benchmarks import (
    heads,
    page,
    plan,
    rollouts,
    step,
    trainer,
    verifier,
)
from benchmarks.harness import ROOT
from browser import CHROMIUM
from forked import run_ranks

pytestmark = pytest.mark.slow


def ask(module: str, question: dict[str, Any], ranks: int = 1) -> list[Any]:
    """As `benchmarks.harness.ask`, which starts new interpreters; test_harness.py tests it."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", module, "--answer", json.dumps(question), folder]
        run_ranks(words, ranks, PYTHONPATH=str(ROOT))
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


# heads


def test_heads_time_and_memory_of_each_way() -> None:
    size = {"rows": 600, "width": 16, "vocabulary": 20_000}
    logits = 600 * 20_000 * 4 / 2**20
    for name, low, high in (("autograd", 1.5, 6), ("bare products", 0, 0.5)):
        [found] = ask("benchmarks.heads", {"name": name, **size})
        assert len(found) == len(heads.WAYS)
        assert all(each["seconds"] > 0 for each in found)
        both = heads.WAYS.index(("both", True))
        assert low * logits <= found[both]["mib"] < high * logits


# plan


def test_a_plan_takes_more_memory_than_a_sort_and_less_than_twenty_columns() -> None:
    [made] = ask("benchmarks.plan", {"what": "plan", "tokens": 10**6})
    [sort] = ask("benchmarks.plan", {"what": "sort", "tokens": 10**6})
    row = plan.to_row(plan.CUTS, 1, [made], [sort])
    assert 0 < row["sort_mib"] < row["plan_mib"]
    assert 12 < row["bytes"] < 80
    assert row["ratio"] == made["seconds"] / sort["seconds"] > 0


# step


def test_every_variant_of_a_step_makes_the_same_update() -> None:
    sizes = {"responses": 32, "length": 12, "budget": 192}
    found = {name: step.answer("grpo", name, **sizes) for name in step.VARIANTS}
    ours = found[step.OURS]
    for each in found.values():
        assert each["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-5)
        assert each["seconds"] > 0
    assert ours["skipped_share"] > found["idle tokens trained"]["skipped_share"] == 0
    assert found["packed"]["useful_share"] == 1.0 > ours["useful_share"]
    row = step.to_row("grpo", step.PLAIN, [found[step.PLAIN]], [ours])
    assert row["ratio"] == found[step.PLAIN]["seconds"] / ours["seconds"]


# trainer


def test_records_times_runs_that_make_the_same_steps() -> None:
    question = {"case": "large policy, stapo", "groups": 1, "steps": 2}
    [found] = ask("benchmarks.records", question)
    assert {len(seconds) for seconds in found.values()} == {2}
    assert all(each > 0 for seconds in found.values() for each in seconds)


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_a_made_up_page_opens_and_is_filtered(tmp_path: Path) -> None:
    page.make_run(tmp_path / "run", 6000, 1)
    path = page.write_inspection_page(tmp_path / "run")
    times = page.opened(path, tmp_path / "profile", 1)
    assert {*page.FILTERS} < {*times}
    assert all(time > 0 for time in times.values())


@pytest.mark.parametrize("side", [trainer.OURS, trainer.TRL])
@pytest.mark.parametrize(
    ("work", "shortest", "longest"),
    [
        ("skewed", 5, 20),  # lognormal, median 8, mean 11
        ("chat", 16, 16),
    ],
)
def test_two_steps_are_trained_for_real(
    side: str, work: str, shortest: float, longest: float
) -> None:
    if side == trainer.TRL and not find_spec("trl"):
        pytest.skip("TRL is not installed: pip install trl")
    question = {"side": side, "work": work, "steps": 2, "seed": 3, "length": 8.0}
    micro_batch = 2048 if side == trainer.OURS else 32
    [run] = ask("benchmarks.trainer", {**question, "micro_batch": micro_batch})
    assert len(run["steps"]) == 2
    for each in run["steps"]:
        assert 0 < each["rollout"] < each["seconds"]
        assert each["clock"] > 0
        assert shortest <= each["length"] <= longest
        assert 0.35 < each["reward"] < 0.65
    assert run["mib"] > 0


def test_a_step_with_the_real_model_gives_its_prompts_some_right_answers(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLOBJ_SMOLLM2", str(smollm2))
    question = {"side": trainer.OURS, "work": "real-6", "steps": 1, "seed": 0}
    [run] = ask("benchmarks.trainer", {**question, "micro_batch": 512})
    [only] = run["steps"]
    assert 0 < only["reward"] < 0.8
    assert only["length"] <= 6
    assert only["skipped"] < 1


# the others


def test_errors_of_graders_are_counted_by_label_and_disputable_rows_apart() -> None:
    labels = {"a": [True, True, False], "b": [False, False]}
    rows = [
        {"kind": kind, "gold": "5", "correct": correct}
        for kind, several in labels.items()
        for correct in several
    ]
    rows.append({"kind": "b", "gold": "5", "correct": True, "policy": True})
    found = verifier.measured("pairs", rows, found="rrrr-r", ours="rrwwww")
    assert found["rows"] == 5
    assert found["false positives counted"] == [2, 3]
    assert found["false negatives counted"] == [0, 2]
    assert found["false positives by form"] == {"a": [1, 1], "b": [1, 2]}
    assert found["false negatives by gold"] == {"integer": [0, 2]}
    assert (found["undecided"], found["differs"], found["rlobj right"]) == (1, 2, 2)
    assert found["disputable"] == "1 of 1"
    silent = verifier.measured("pairs", rows, found="-wwwwr", ours="rrwwww")
    assert silent["false negatives counted"] == [2, 2]


def test_the_graders_of_others_are_called_and_may_skip_a_response() -> None:
    pairs = [
        (r"\boxed{12}", "12"),
        (r"\boxed{1/3}", "1/2"),
        (r"\boxed{1/2}", r"\frac12 \text{ of all}"),
    ]
    assert verifier.verdicts("trl", pairs) == [True, False, None]
    assert verifier.verdicts("math-verify", pairs)[:2] == [True, False]


def test_the_kept_verdicts_of_other_graders_are_on_the_blind_rows() -> None:
    kept = json.loads(verifier.KEPT.read_text(encoding="utf-8"))
    assert set(kept) == set(verifier.GRADERS) - {"rlobj"}
    for suite in verifier.SUITES:
        rows = hashlib.sha256((verifier.BLIND / f"{suite}.jsonl.gz").read_bytes()).hexdigest()
        for own in kept.values():
            assert own[suite]["rows"] == rows
            assert len(own[suite]["verdicts"]) == len(verifier.blind(suite))


# rollouts


def test_simulated_rollouts_wait_less_and_are_as_old_as_the_schedule_says() -> None:
    lengths = (400, 0.8, 4000)
    found = {arm: rollouts.best(8, lengths, arm, 12) for arm in rollouts.ARMS}
    assert [found[arm]["stale"] for arm in ("depth 0", "depth 1")] == pytest.approx([0, 1])
    assert 1 < found["continuous"]["stale"] < 3
    assert found["continuous"]["most"] <= rollouts.MAX_STALENESS
    assert found["continuous"]["rate"] > found["depth 1"]["rate"] > 0
