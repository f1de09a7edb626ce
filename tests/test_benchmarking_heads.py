"""The measuring of heads and of plans: what is asked, what the tables and findings make of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rlobj.base.errors import RunError
from rlobj.benchmarking import device_heads, figures, heads, peer_heads, plan
from rlobj.benchmarking.head_findings import Row, cpu_findings, gpu_findings, ratio
from rlobj.benchmarking.head_methods import METHODS, MODES, Point
from rlobj.benchmarking.heads import answer, grid
from rlobj.benchmarking.peer_heads import INSTALL, PEERS, installed
from rlobj.benchmarking.tables import Finding, markdown

REQUIREMENTS = Path(__file__).parents[1] / "benchmarks" / "peers-requirements.txt"


def points(width=16, mode="both", rows=600, vocabulary=20_000):
    return [Point(rows, width, vocabulary, mode, backward) for backward in (False, True)]


def made_up(width=256, mode="both", trl=None):
    """Rows at two points: ours, the floor, and three others of which one could not."""
    rows = []
    for point in points(width, mode):
        rows += [
            Row("rlobj", point, (1.0, 1.0), 10.0),
            Row("bare products", point, (0.8, 0.5), 9.0),
            Row("TRL fused", point, trl or (4.0, 5.0), 100.0),
            Row("autograd", point, (2.0, 2.5), 400.0),
            Row("prime-rl", point, skipped="no gradient through the entropy"),
        ]
    return rows


@pytest.mark.slow
def test_time_and_memory_of_each_method():
    rows = heads.run(points(), rounds=2)
    by = {(row.method, row.point.backward): row for row in rows}
    assert set(by) == {(name, backward) for name in METHODS for backward in (False, True)}
    for row in rows:
        assert len(row.seconds) == 2
        assert min(row.seconds) > 0
    logits = 600 * 20_000 * 4 / 2**20
    assert by["autograd", False].mib > 1.5 * logits  # the logits and their log-probs
    assert by["rlobj", True].mib < logits


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_another_librarys_head_is_measured_where_it_is_installed(name):
    if PEERS[name].gpu_only or not installed(name):
        pytest.skip(f"{name} is not installed, or runs on a GPU alone")
    mode = "logprob" if name in ("Liger chunked", "prime-rl") else "both"
    for row in heads.run(points(mode=mode), [name]):
        assert row.skipped is None
        assert min(row.seconds) > 0


def test_a_method_that_cannot_do_what_is_asked_is_skipped_with_the_reason():
    def partial(hidden, weight, targets, mode):
        if mode == "both":
            raise NotImplementedError("no entropy")
        return METHODS["autograd"](hidden, weight, targets, mode)

    small = [*points(rows=8, vocabulary=600), *points(rows=8, vocabulary=600, mode="logprob")]
    found = answer(partial, small, memory=False)
    assert [each.get("skipped") for each in found] == ["no entropy", "no entropy", None, None]
    assert all(each["seconds"] > 0 for each in found[2:])


def test_a_failing_head_of_ours_is_an_error_and_of_another_library_a_reason(monkeypatch):
    def failing(module, question):
        raise RunError("measuring it failed:\nTraceback\nValueError: of its own")

    monkeypatch.setattr(heads, "ask", failing)
    rows = heads.run(points(), ["TRL fused"])
    assert {row.skipped for row in rows} == {"failed: ValueError: of its own"}
    with pytest.raises(RunError, match="of its own"):
        heads.run(points(), ["rlobj"])


def test_the_grid_has_every_size_and_the_quick_one_the_smallest():
    assert len({p.size() for p in grid()}) == 8
    assert {(p.rows, p.vocabulary) for p in grid(quick=True)} == {(512, 32_000)}
    assert {p.mode for p in grid() if not p.backward} == set(MODES)
    assert not any(p.backward for p in grid() if p.mode == "proxy")


def test_a_ratio_compares_round_by_round():
    ours, floor, trl, *_ = made_up()
    assert ratio(ours, floor) == pytest.approx((1 / 0.8 + 1 / 0.5) / 2)
    assert ratio(trl, ours) == 4.5


def test_findings_at_h_256_take_the_fastest_and_the_leanest_other():
    time, memory = cpu_findings(made_up(trl=(3.0, 3.0)))
    assert time == Finding(
        "H 256, log-prob and entropy: 0.45x (autograd) the time of the fastest other "
        "(aim: at most 0.80x): reached at all 2 points.",
        reached=True,
    )
    assert memory == Finding(
        "H 256, log-prob and entropy: 0.10x (TRL fused) the memory of the leanest other "
        "(aim: at most 0.35x): reached at all 2 points.",
        reached=True,
    )


def test_beside_plain_autograd_alone_there_is_no_verdict():
    told = cpu_findings(row for row in made_up() if row.method != "TRL fused")
    assert [finding.reached for finding in told] == [None, None]
    assert "0.45x (autograd) the time" in told[0].text
    assert told[0].text.endswith("no verdict, as no other library was measured.")


def test_findings_at_h_1024_take_the_products_and_trl_and_say_where_they_miss():
    rows = made_up(width=1024, trl=(1.25, 1.25))
    slow = next(row for row in rows if row.method == "TRL fused" and row.point.backward)
    rows[rows.index(slow)] = Row("TRL fused", slow.point, (4.0, 4.0), 100.0)
    floor, trl = cpu_findings(rows)
    assert not floor.reached
    assert "1.62x the time of the bare products (aim: at most 1.10x): not reached" in floor.text
    assert not trl.reached
    assert "0.25x to 0.80x the time of TRL's fused head (aim: at most 0.75x)" in trl.text
    assert "reached at 1 of 2 points; farthest at N 600, H 1,024, V 20k" in trl.text
    assert trl.text.endswith("log-prob and entropy, forward.")


def test_the_table_has_both_passes_in_a_row_and_says_what_is_not_installed():
    table = heads.table(made_up(), ["verl fused", "verl on logits", "verl Triton"], rounds=2)
    head = "N 600, H 256, V 20k: log-prob and entropy"
    by = {(row["head"], row["method"]): row for row in table.rows}
    trl = by[head, "TRL fused"]
    assert (trl["forward_seconds"], trl["backward_time"], trl["backward_mib"]) == (4.0, 4.5, 100.0)
    assert trl["backward_memory"] == 10
    assert by[head, "prime-rl"]["skipped"] == "no gradient through the entropy"
    assert by["not measured", "verl fused"]["skipped"] == "not installed"
    assert ("not measured", "verl Triton") not in by  # nothing was measured on a GPU
    assert (
        table.findings[-1].text
        == f"Not installed: verl fused, verl on logits. To measure: {INSTALL['verl']}"
    )
    text = markdown(table)
    assert "of their head and of a plain proxy" in text
    assert "| forward s | ×\N{NO-BREAK SPACE}ours | MiB | both s |" in text
    assert f"| **{head}** | **rlobj** | **1.00** |" in text
    assert "| prime-rl | no gradient through the entropy |" in text


def test_the_requirements_pin_what_the_advice_says():
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pinned = {line.removeprefix("#").split()[-1] for line in lines if "==" in line}
    assert all("==" in line for line in lines if not line.startswith("#"))
    words = " ".join(way for way in INSTALL.values() if way.startswith("pip ")).replace(";", "")
    advised = set(words.split()) - {"pip", "install", "--no-deps"}
    assert advised == pinned - {"torch==2.13.0", "matplotlib==3.11.2"}


@pytest.mark.parametrize("mode", MODES)
def test_trls_functions_on_logits_make_one_pass_for_both(monkeypatch, mode):
    """The two apart take two passes of its kernels on a GPU."""

    def both(logits, index):
        logprobs = torch.log_softmax(logits, -1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(1, index[:, None])[:, 0], entropy

    found = {"selective_log_softmax_and_entropy": both}
    if mode == "logprob":
        found = {"selective_log_softmax": lambda *given: both(*given)[0]}
    monkeypatch.setattr(peer_heads, "_module", lambda name: SimpleNamespace(**found))
    hidden, weight, targets = torch.randn(4, 8), torch.randn(600, 8), torch.arange(4)
    theirs = peer_heads.trl_logits(hidden, weight, targets, mode)
    ours = METHODS["rlobj"](hidden, weight, targets, mode)
    torch.testing.assert_close(theirs[0], ours[0])
    assert (theirs[1] is None) == (mode == "logprob")
    if mode != "logprob":
        torch.testing.assert_close(theirs[1], ours[1])


def test_the_gpus_path_runs_without_one():
    """Clock and memory are other ones there; what is skipped and what is timed is the same."""

    def partial(hidden, weight, targets, mode):
        assert hidden.dtype == weight.dtype == torch.bfloat16
        if mode == "proxy":
            raise NotImplementedError("no proxy")
        return METHODS["rlobj"](hidden, weight, targets, mode)

    small = [Point(16, 32, 600, p.mode, p.backward, "cuda") for p in device_heads.grid()[:5]]
    found = device_heads.answer(partial, small, device="cpu")
    assert [each.get("skipped") for each in found] == [None] * 4 + ["no proxy"]
    assert all(each["seconds"] > 0 and each["mib"] is None for each in found[:4])


def test_findings_on_a_gpu_have_their_own_bounds():
    rows = []
    for point in device_heads.grid():
        rows += [
            Row("rlobj", point, (1.2,), 1500.0),
            Row("bare products", point, (1.0,), 0.0),
            Row("TRL fused", point, (1.3,), 3000.0),
            Row("verl Triton", point, (1.5,), 900.0),
            Row("Liger scaled", point, (1.1,), 300.0),
        ]
    told = gpu_findings(rows)
    assert [finding.reached for finding in told] == [
        True,  # 1.2 <= 1.30 at H 2048
        False,  # > 1.15 at H 4096
        False,  # > 1.12 with backward
        True,  # faster than TRL
        False,  # 1.25 times as fast as verl's Triton kernel
        None,  # the ceiling has no bound
        False,  # 1.57 GB
    ]
    table = heads.table(rows, ["verl Triton"], rounds=1)
    assert table.rows[0]["head"] == "GPU, N 32,768, H 2,048, V 152k: log-prob"


def test_findings_of_plans_say_whether_they_grow_with_the_tokens():
    answers = {
        (count, what): [{"seconds": each * count * bend, "mib": 60.0 * count}] * 2
        for count, bend in ((1, 1.0), (4, 1.5))
        for what, each in (("plan", 0.3), ("sort", 0.1))
    }
    table = plan.table(answers, rounds=2)
    assert [row["tokens"] for row in table.rows] == [1_000_000, 4_000_000]
    assert table.rows[1]["over_sort"] == pytest.approx(3)
    growth, memory, beside = table.findings
    assert growth.text.endswith("0.30 to 0.45, 1.50x (aim: flat, at most 1.25x).")
    assert [finding.reached for finding in table.findings] == [False, None, None]
    assert memory.text.startswith("Memory: 63 bytes a token at 4M tokens")
    assert beside.text == "Three cuts take 3.0x the time of one sort."


@pytest.mark.slow
def test_a_plan_and_a_sort_are_measured_in_processes_of_their_own(monkeypatch):
    monkeypatch.setattr(plan, "QUICK", (1,))
    told = []
    table = plan.measure(quick=True, rounds=1, progress=lambda *now: told.append(now))
    (row,) = table.rows
    assert row["plan_seconds"] > 0
    assert 0 < row["sort_mib"] < row["plan_mib"]
    assert told[0] == ("plan of 1M tokens", 0, 2)
    assert told[-1][1:] == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heads", "plan"])
def test_a_table_is_drawn_with_ours_and_the_others(name, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    if name == "heads":
        module, table = heads, heads.table(made_up(), [], rounds=2)
        labels = {"rlobj", "bare products", "TRL fused", "autograd"}
    else:
        answers = {
            (count, what): [{"seconds": 1.0 * count, "mib": 60.0 * count}]
            for count in (1, 4)
            for what in ("plan", "sort")
        }
        module, table = plan, plan.table(answers, rounds=1)
        labels = {"1", "4"}
    figure = Figure()
    module.draw(figure, table)
    axis = figure.axes[0]
    ticks = axis.get_yticklabels() if name == "heads" else axis.get_xticklabels()
    assert {tick.get_text() for tick in ticks} == labels
    figures.save(module.draw, table, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
