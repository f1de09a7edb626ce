"""Each benchmark measures for real, at a tiny size; wrong numbers fail."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from benchmarks import (
    conversations,
    heads,
    invariance,
    page,
    plan,
    records,
    scaling,
    step,
    trainer,
    verifier,
)
from benchmarks.harness import ROOT
from benchmarks.rollouts import PROMPT, RIGHT, RandomSampler, lognormal_lengths
from benchmarks.trainer_work import EOS, PAD, VOCABULARY, build_policy, even_share, hazard
from browser import CHROMIUM
from forked import run_ranks

from rlobj.samplers import SamplingSettings

pytestmark = pytest.mark.slow


def ask(module: str, question: dict[str, Any], ranks: int = 1) -> list[Any]:
    """As `benchmarks.harness.ask`, which starts new interpreters; test_harness.py tests it."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", module, "--answer", json.dumps(question), folder]
        run_ranks(words, ranks, PYTHONPATH=str(ROOT))
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


# conversations


def test_an_engine_that_draws_turns_together_waits_for_the_slowest_tool() -> None:
    sleeps = [conversations.slept(problem, 0, 0) for problem in range(4000)]
    assert median(sleeps) == pytest.approx(0.01, rel=0.2)
    assert sorted(sleeps)[-40] == pytest.approx(2, rel=0.4)  # p99
    size = {"rounds": 1, "problems": 4, "count": 2, "size": 4}
    [found] = ask("benchmarks.conversations", {"engine": "transformers", **size})
    rows = {row["arm"]: row for row in conversations.summary(found)}
    slow = rows["slow tool"]
    assert slow["wall"] > slow["least"] > 0.1  # sleeps add up; on a busy machine, others are longer
    assert slow["most"] <= slow["wall"]
    assert rows["one turn"]["over"] == 1


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


@pytest.mark.parametrize("name", [n for n in heads.METHODS if n != "bare products"])
def test_every_installed_head_computes_what_autograd_does(name: str) -> None:
    package = heads.PEERS.get(name.partition(" ")[0], "torch")
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(4, 64), torch.randn(600, 64), torch.arange(4)
    wanted = heads.autograd(hidden, weight, targets, "both")
    found = heads.METHODS[name](hidden, weight, targets, "both")
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_heads_rows_compare_each_round_with_ours() -> None:
    def answers(seconds: float) -> list[dict[str, float]]:
        return [{"seconds": seconds * (1 + index), "mib": 8.0} for index in range(len(heads.WAYS))]

    found = {
        ("size", "rlobj"): [answers(1.0), answers(4.0)],
        ("size", "autograd"): [answers(2.0), answers(2.0)],
        ("size", "Liger"): [answers(2.0), "ImportError: no"],
    }
    rows = {(r["computed"], r["method"]): r for r in heads.to_table(found, 2).rows}
    assert len(rows) == 9
    assert rows["log-prob and entropy", "autograd"]["both_ratio"] == (2 + 0.5) / 2
    assert rows["log-prob and entropy", "rlobj"]["both"] == 4 * 2.5
    assert "both" not in rows["log-prob, entropy and min-p proxy", "autograd"]
    assert rows["log-prob", "Liger"]["forward"] == "failed: ImportError: no"


# plan


def test_a_plan_takes_more_memory_than_a_sort_and_less_than_twenty_columns() -> None:
    [made] = ask("benchmarks.plan", {"what": "plan", "tokens": 10**6})
    [sort] = ask("benchmarks.plan", {"what": "sort", "tokens": 10**6})
    row = plan.to_row(plan.CUTS, 1, [made], [sort])
    assert 0 < row["sort_mib"] < row["plan_mib"]
    assert 12 < row["bytes"] < 80
    assert row["ratio"] == made["seconds"] / sort["seconds"] > 0


# rollouts, step, scaling


def test_lengths_are_lognormal_around_their_median() -> None:
    lengths = lognormal_lengths(2000, 100, 0.8)
    assert median(lengths) == pytest.approx(100, rel=0.05)
    assert float(torch.tensor(lengths).log().std()) == pytest.approx(0.8, rel=0.05)
    assert set(lognormal_lengths(9, 100, 0.0)) == {100}
    assert max(lognormal_lengths(2000, 100, 5.0)) == 1600


def test_the_sampler_gives_each_prompt_its_lengths_and_rewards() -> None:
    sampler = RandomSampler([3, 1, 4, 1] * 10, group=4, vocabulary=50, dead=0.3)
    prompts = [sampler.tokenizer(f"{i:0{PROMPT}d}").input_ids for i in reversed(range(10))]
    asked = SamplingSettings(max_tokens=4)
    groups = sampler.sample(prompts, count=4, settings=asked, seeds=[0] * 10)[::-1]
    assert [len(sample.tokens) for group in groups for sample in group] == [3, 1, 4, 1] * 10
    assert all(len(prompt) == PROMPT for prompt in prompts)
    right = [sum(sample.text == RIGHT for sample in group) for group in groups]
    assert [i for i, count in enumerate(right) if count == 4] == [3, 6, 9]
    assert set(right) == {2, 4}


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


def test_more_tokens_take_no_more_memory_than_a_micro_batch_does() -> None:
    [less] = ask("benchmarks.scaling", {**scaling.SAME, "responses": 8})
    [more] = ask("benchmarks.scaling", {**scaling.SAME, "responses": 32})
    assert (less["tokens"], more["tokens"]) == (1024, 4096)
    assert more["seconds"] > less["seconds"] > 0
    assert 1 < more["mib"] < 2 * less["mib"]
    assert more["rank_balance"] == 1.0


def test_two_processes_share_the_tokens_of_a_rollout() -> None:
    size = {**scaling.SAME, "responses": 32, "sigma": 0.8}
    both = ask("benchmarks.scaling", size, ranks=2)
    assert len(both) == 2
    assert 1.0 < both[0]["rank_balance"] <= 1.05


# trainer


def test_the_policys_probability_to_end_at_each_length_is_the_lognormal_one(tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    build_policy(tmp_path, 120, 20.0)
    model: Any = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        tokens = torch.randint(2, VOCABULARY, (8, 116), generator=draws)
        chances = model(tokens).logits.softmax(-1).mean(0)
    for length in (5, 20, 60, 100):
        found = float(chances[16 - 2 + length, EOS])
        assert found == pytest.approx(hazard(length, 20.0), rel=0.15)
    assert float(chances[:, PAD].max()) < 1e-8
    left = math.prod(1 - hazard(length, 20.0) for length in range(1, 201))
    reached = 0.5 * (1 + math.erf(math.log(200.5 / 20) / (0.8 * math.sqrt(2))))
    assert 1 - left == pytest.approx(reached, rel=1e-9)


def test_records_times_runs_that_make_the_same_steps() -> None:
    question = {"case": "large policy, stapo", "groups": 1, "steps": 2}
    [found] = ask("benchmarks.records", question)
    assert {len(seconds) for seconds in found.values()} == {2}
    assert all(each > 0 for seconds in found.values() for each in seconds)


def test_records_compares_steps_with_those_of_the_same_number() -> None:
    seconds = {records.RECORDED: [1.1, 2.4], records.OFF: [1.0, 2.0], records.BARE: [1.1, 1.2]}
    found = records.compared(seconds)
    assert found["record"] == pytest.approx(0.15)
    assert found["record_sum"] == pytest.approx(0.5 / 3)
    assert found["all"] == pytest.approx(0.5)


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_a_made_up_page_opens_and_is_filtered(tmp_path: Path) -> None:
    page.make_run(tmp_path / "run", 6000, 1)
    path = page.write_inspection_page(tmp_path / "run")
    times = page.opened(path, tmp_path / "profile", 1)
    assert {*page.FILTERS} < {*times}
    assert all(time > 0 for time in times.values())


def test_the_timing_reward_is_the_share_of_even_numbers() -> None:
    assert even_share("2 3 4 1000", "2") == 0.75
    assert even_share("", "2") == 0.0


@pytest.mark.parametrize("side", [trainer.OURS, trainer.TRL])
def test_two_steps_are_trained_for_real(side: str) -> None:
    if side == trainer.TRL and not find_spec("trl"):
        pytest.skip("TRL is not installed: pip install trl")
    question = {"side": side, "work": "skewed", "steps": 2, "seed": 3, "length": 8.0}
    micro_batch = 2048 if side == trainer.OURS else 32
    [run] = ask("benchmarks.trainer", {**question, "micro_batch": micro_batch})
    assert len(run["steps"]) == 2
    for each in run["steps"]:
        assert 0 < each["rollout"] < each["seconds"]
        assert 5 < each["length"] < 20  # lognormal, median 8, mean 11
        assert 0.35 < each["reward"] < 0.65
    assert run["mib"] > 0


def test_the_trainers_row_compares_runs_with_the_same_seed() -> None:
    def run(seconds: float, reward: float = 0.0, length: float = 10.0) -> dict[str, Any]:
        steps = [
            {"seconds": s, "rollout": s / 4, "reward": reward, "length": length}
            for s in (99, seconds)  # the first step warms up
        ]
        return {"steps": steps, "mib": 100.0}

    found = {
        ("equal", trainer.OURS, 16384): [run(1.0), run(10.0), run(1.0)],
        ("equal", trainer.TRL, 32): [run(5.0), run(50.0), run(9.0)],
        ("equal", trainer.TRL, 64): [run(2.0, length=20.0), run(30.0), run(8.0)],
        ("learning", trainer.OURS, 16384): [run(1.0, 0.2), run(1.0, 0.3)],
        ("learning", trainer.TRL, 256): [run(1.0, 0.25), run(1.0, 0.35)],
    }
    ours, best, worst, learned, theirs = trainer.to_table(found, {}).rows
    assert (ours["samples"], ours["update"], "ratio" in ours) == (64.0, 0.75, False)
    assert (best["micro_batch"], best["ratio"], best["update_ratio"]) == (64, 3.0, 3.0)
    assert (worst["micro_batch"], worst["ratio"]) == (32, 5.0)
    assert theirs["apart"] == pytest.approx(0.05)
    assert theirs["seeds_apart"] == pytest.approx(learned["seeds_apart"]) == pytest.approx(0.1)
    assert theirs["curve"] == pytest.approx([0.3, 0.3])


# the others


def test_selection_by_micro_batches_is_exact_with_a_plan_and_not_without() -> None:
    rows = invariance.measure(True, 1, sequences=16).rows
    assert {row["preset"] for row in rows} == set(invariance.PRESETS)
    assert all(row["ours_iou"] == 1.0 and row["ours_gradient"] < 1e-12 for row in rows)
    assert all(row["local_gradient"] > 1e-3 for row in rows if row["micro_batch"] < 16)


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


def test_the_interval_by_forms_is_wider_where_forms_fail_as_a_whole() -> None:
    low, high = verifier.wilson(0, 10) or [0.0, 0.0]
    assert (round(low, 4), round(high, 4)) == (0.0, 0.2775)  # Wilson's formula by hand
    forms = {"fails": [50, 50], **{f"form {n}": [0, 50] for n in range(9)}}
    by_rows, by_forms = verifier.wilson(50, 500), verifier.by_forms(forms)
    assert by_rows is not None
    assert by_forms is not None
    assert by_forms[0] < by_rows[0] < 0.1 < by_rows[1] < by_forms[1]
    assert verifier.by_forms({"none": [0, 50]}) is None


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


def test_the_speed_of_the_verifier_counts_its_worker() -> None:
    [found] = ask("benchmarks.verifier", {"grader": "rlobj"})
    assert found["integers"] > found["mixed"] > 10


def test_import_costs_are_those_of_whole_processes() -> None:
    """Asked in a small process: a child begins with the peak memory of its parent."""
    code = "from benchmarks.import_cost import cost; print(*cost(['-c', {!r}]))"
    for work, least, most in (("sum(range(10**7))", 5, 50), ("bytearray(100 << 20)", 100, 150)):
        command = [sys.executable, "-c", code.format(work)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        seconds, mib = map(float, done.stdout.split())
        assert 0.005 < seconds < 5
        assert least < mib < most


# trl


def test_trl_gives_the_gradient_of_rlobj_alone(tmp_path: Path) -> None:
    question = {"objectives": ["20-entropy"], "size": 8, "steps": 2, "folder": str(tmp_path)}
    found = ask("benchmarks.trl", question)[0]["20-entropy"]
    assert found["difference"] < 1e-5
    assert 0.01 < found["norm"] < 100
    parts = {name: found[name][0] for name in ("plan", "forward", "record", "step")}
    assert all(0 < parts[name] < parts["step"] for name in ("plan", "forward", "record"))
