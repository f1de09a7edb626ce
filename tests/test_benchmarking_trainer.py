"""The benchmark of whole training steps: its policy's lengths, its numbers and what they say."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from rlobj.benchmarking import trainer
from rlobj.benchmarking.processes import ask
from rlobj.benchmarking.tables import markdown
from rlobj.benchmarking.trainer import MODULES, OURS, TRL, Curves, Measured
from rlobj.benchmarking.trainer_ours import Watch, configuration
from rlobj.benchmarking.trainer_work import (
    EOS,
    PAD,
    Asked,
    Lengths,
    Shape,
    Work,
    build_policy,
    even_share,
    exact_answer,
)

METRICS = ("reward/mean", "response/length_mean", "tokens/useful_share")


def steps(*seconds: float, reward: float = 0.0, length: float = 10.0) -> dict[str, Any]:
    """A run of a process; its first step warms up."""
    lines = [
        {"seconds": s, "rollout": s / 4, "reward": reward, "length": length} for s in (99, *seconds)
    ]
    return {"steps": lines, "mib": 100.0}


def both(work: str, ours: float, theirs: dict[int, float]) -> list[Measured]:
    """A round of both sides: seconds of a step, TRL's by micro-batch."""
    found = [Measured(OURS, Asked(work, 2, 16384), [steps(ours)])]
    return found + [Measured(TRL, Asked(work, 2, n), [steps(s)]) for n, s in theirs.items()]


def test_the_chances_to_end_add_up_to_the_lognormal_distribution() -> None:
    lengths, left = Lengths(longest=300, median=20.0, sigma=0.8), 1.0
    for length in range(1, 201):
        left *= 1 - lengths.hazard(length)
    reached = 0.5 * (1 + math.erf(math.log(200.5 / 20) / (0.8 * math.sqrt(2))))
    assert 1 - left == pytest.approx(reached, rel=1e-9)


def test_the_policys_own_chance_to_end_at_each_length_is_the_one_asked_for(tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    prompt, lengths = 3, Lengths(longest=120, median=20.0, sigma=0.8)
    build_policy(tmp_path, Shape(layers=1, width=128, heads=2, vocabulary=500), lengths, prompt)
    model: Any = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    tokens = torch.randint(2, 500, (8, prompt + 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        chances = model(tokens).logits.softmax(-1).mean(0)
    for length in (5, 20, 60, 100):
        found = float(chances[prompt - 2 + length, EOS])
        assert found == pytest.approx(lengths.hazard(length), rel=0.15)
    assert float(chances[:, PAD].max()) < 1e-8


def test_a_policy_without_a_median_never_ends_a_response(tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    build_policy(tmp_path, Shape(1, 64, 2, 100), Lengths(longest=30), 3)
    model: Any = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        chances = model(torch.arange(2, 35)[None]).logits.softmax(-1)
    assert float(chances[..., EOS].max()) < 1e-9


def test_rewards_read_the_response_alone_or_its_answer() -> None:
    assert even_share("2 3 4 1000", "even") == 0.75
    assert even_share("", "even") == 0.0
    assert (exact_answer(" 15 ", "15"), exact_answer("15 1", "15")) == (1.0, 0.0)


def test_our_side_is_given_the_objective_that_is_set_on_trl() -> None:
    work = Work("policy", "problems.jsonl", "math:sqrt", 2, 4, 8, 1e-4)
    config = configuration(work, Asked("learning", 3, 2000), seed=5)
    objective: Any = config.objective
    assert (objective.advantage.kind, objective.advantage.epsilon) == ("group_normalized", 1e-4)
    assert (objective.surrogate.low, objective.surrogate.high) == (0.2, 0.28)
    assert objective.divisor.kind == "token_mean"
    assert not objective.penalties
    assert objective.keep_rule is None
    assert (config.training.schedule, config.training.warmup_steps) == ("constant", 0)
    assert (config.training.updates_per_step, config.evaluation.every) == (1, 0)
    assert (config.training.steps, config.training.micro_batch_tokens) == (3, 2000)


def test_our_rollout_is_drawing_and_grading(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("rlobj.benchmarking.trainer_ours.time.process_time", lambda: now[0])
    watch = Watch()
    watch.started({})
    for phase, seconds in (("sampling", 4.0), ("grading", 2.0), ("scoring", 1.0), ("updating", 8)):
        watch.phase(phase)
        now[0] += seconds
    watch.stepped(1, dict.fromkeys(METRICS, 0.0))
    assert (watch.steps[0]["seconds"], watch.steps[0]["rollout"]) == (15.0, 6.0)


def test_a_question_survives_json() -> None:
    asked = Asked("skewed", 3, 16, (0, 1), 20.0, Shape(layers=3))
    assert Asked.parse(json.dumps(asdict(asked))) == asked


def test_lengths_are_those_that_are_asked_for() -> None:
    assert Asked("skewed", 1, 1, median=20.0).lengths == Lengths(240, 20.0, 0.8)
    assert Asked("equal", 1, 1, median=20.0).lengths == Lengths(64)
    found = [Measured(OURS, Asked("skewed", 2, 4096, median=20.0), [steps(1.0)])]
    [row] = trainer.table(found).rows
    assert row["work"] == "skewed lengths: lognormal, median 20, sigma 0.8, up to 240"
    assert row["micro_batch"] == "4,096 tokens"
    assert ("steps counted in each", "skewed 1") in trainer.table(found).settings


def test_quick_questions_count_six_skewed_steps_at_least() -> None:
    skewed = [asked for _, asked in trainer._questions(True, 1) if asked.work == "skewed"]
    assert [asked.seeds for asked in skewed] == [(1,), (1,)]
    assert all(asked.steps - 1 >= 6 for asked in skewed)  # the first warms up


def test_speed_is_compared_with_trls_best_micro_batch() -> None:
    found = both("skewed", 2.0, {16: 9.0, 64: 5.0})
    table = trainer.table(found)
    assert [row["side"] for row in table.rows] == [OURS, TRL, TRL]
    assert [row["micro_batch"] for row in table.rows[1:]] == ["64 responses", "16 responses"]
    assert [row.get("ratio") for row in table.rows] == [None, 2.5, 4.5]
    assert table.rows[0]["samples"] == 32.0
    assert table.rows[0]["update"] == 1.5
    [told] = table.findings
    assert "2.50x the samples per second" in told.text
    assert "micro-batches of 64 responses, the best of 2 tried" in told.text


@pytest.mark.parametrize(("theirs", "verdict"), [(1.31, "reached"), (1.29, "missed")])
def test_a_finding_says_whether_its_aim_is_reached(theirs: float, verdict: str) -> None:
    [told] = trainer.table(2 * both("equal", 1.0, {64: theirs}), rounds=2).findings
    assert f"aim 1.3x: {verdict} ({theirs:.2f}x to {theirs:.2f}x in 2 rounds)" in told.text
    assert told.reached is (verdict == "reached")


@pytest.mark.parametrize("theirs", [1.29, 1.31])
def test_one_round_gives_no_verdict(theirs: float) -> None:
    [told] = trainer.table(both("equal", 1.0, {64: theirs}), rounds=1).findings
    assert told.reached is None
    assert "reached" not in told.text
    assert told.text.endswith("aim 1.3x. One round: take more with --rounds.")


def test_ratios_are_medians_of_processes_that_ran_in_turn() -> None:
    rounds = [(1.0, 2.0), (10.0, 30.0), (1.0, 9.0)]
    found = [each for ours, theirs in rounds for each in both("equal", ours, {64: theirs})]
    table = trainer.table(found, rounds=3)
    assert table.rows[1]["ratio"] == 3.0
    assert "2.00x to 9.00x in 3 rounds" in table.findings[0].text


def test_longer_responses_are_no_slowness() -> None:
    ours = Measured(OURS, Asked("skewed", 2, 16), [steps(1.0, length=10)])
    theirs = Measured(TRL, Asked("skewed", 2, 16), [steps(4.0, length=20)])
    row = trainer.table([ours, theirs]).rows[1]
    assert (row["ratio"], row["token_ratio"]) == (4.0, 2.0)


def curves(shift: float) -> Curves:
    """Two seeds 0.1 apart on both sides; TRL's shifted."""
    sides = [
        Measured(side, Asked("learning", 2, 1, (0, 1)), runs)
        for side, runs in (
            (OURS, [steps(1.0, reward=0.2), steps(1.0, reward=0.3)]),
            (TRL, [steps(1.0, reward=0.2 + shift), steps(1.0, reward=0.3 + shift)]),
        )
    ]
    return Curves.of(*sides)


def test_curves_as_close_as_two_seeds_are_within_the_bound_and_others_beyond() -> None:
    assert curves(0.05).between == pytest.approx((0.05, 0.05))
    assert curves(0.05).within == pytest.approx((0.1, 0.1))
    assert "within 1.5x of the 0.100" in curves(0.05).finding().text
    assert "beyond 1.5x of the 0.100" in curves(0.2).finding().text
    assert [curves(shift).finding().reached for shift in (0.05, 0.2)] == [True, False]


def test_without_trl_the_table_has_our_rows_and_says_what_to_install() -> None:
    table = trainer.table(both("equal", 1.0, {}))
    assert [row["side"] for row in table.rows] == [OURS]
    [told] = table.findings
    assert "pip install trl==" in told.text
    assert told.reached is None


def test_measuring_asks_both_sides_in_turn_and_learning_once(monkeypatch) -> None:
    asked = []

    def answer(module: str, question: dict[str, Any]) -> list[dict[str, Any]]:
        asked.append((question["work"], module == MODULES[OURS]))
        return [steps(1.0) for _ in question["seeds"]]

    monkeypatch.setattr(trainer.processes, "ask", answer)
    monkeypatch.setattr(trainer.importlib.util, "find_spec", lambda name: object())
    table = trainer.measure(quick=True, rounds=2)
    turn = [("equal", True), ("equal", False), ("skewed", True), ("skewed", False)]
    assert asked == [*turn, ("learning", True), ("learning", False), *turn]
    assert len(table.findings) == 3
    assert "generate" in table.reading  # how each side draws is told
    assert "**rlobj**" in markdown(table)


def test_the_figure_has_a_curve_and_a_bar_for_each_side() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure()
    found = both("equal", 1.0, {64: 2.0, 32: 3.0}) + both("learning", 1.0, {256: 2.0})
    trainer.draw(figure, trainer.table(found))
    left, right = figure.axes
    assert len(left.lines) == 2
    assert len(right.texts) == 4  # TRL's best micro-batch alone
    assert "over the slower trainer's" in right.get_xlabel()
    assert max(bar.get_x() + bar.get_width() for bar in right.patches) == 1


@pytest.mark.slow
@pytest.mark.parametrize("side", [OURS, TRL])
def test_two_steps_are_trained_for_real(side: str) -> None:
    if side == TRL and importlib.util.find_spec("trl") is None:
        pytest.skip("TRL is not installed: pip install trl")
    shape = Shape(layers=1, width=32, heads=2, vocabulary=100)
    micro_batch = 2048 if side == OURS else 32
    [run] = ask(MODULES[side], asdict(Asked("equal", 2, micro_batch, (3,), shape=shape)))
    assert [step["length"] for step in run["steps"]] == [64.0, 64.0]
    assert all(0 < step["rollout"] < step["seconds"] for step in run["steps"])
    assert all(0.4 < step["reward"] < 0.6 for step in run["steps"])
    assert run["mib"] > 0
