"""RunRecord: the folder of a run in another trainer, on one and two processes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from ranks import on_ranks
from runs import metrics
from strategies import awkward_batch, fitting

import rlobj
from rlobj import Objective, load_preset, read_records, read_tables
from rlobj.base.errors import ConfigError
from rlobj.integrations.run_record import RunRecord, observed_update
from rlobj.ranks import ProcessGroup as Comm
from rlobj.runs.layout import step_file
from rlobj.runs.reading import Record
from rlobj.settings.building import build_config
from rlobj.settings.run_config import RunConfig


def config_of(preset: str, **output: Any) -> RunConfig:
    own = {"training": {"steps": 4}, "output": {"tables_every": 1, **output}}
    return build_config([("preset", load_preset(preset).config), ("test", own)])


class Trainer:
    """Updates on random tokens, in micro-batches: what a foreign loop hands to its record."""

    def __init__(self, objective: Objective, comm: Comm, updates: int = 1, parts: int = 3) -> None:
        self.objective, self.comm, self.updates, self.parts = objective, comm, updates, parts
        self.state = {**objective.init(), "update": 0}

    def step(self, record: RunRecord, number: int, **more: float) -> dict[str, float]:
        phases = [phase for phase in self.objective.phases for _ in range(self.updates)]
        for phase in phases:
            self.update(record, phase, number)
        return record.end_step(more)

    def update(self, record: RunRecord, phase: Objective, number: int) -> None:
        whole = fitting(self.objective, awkward_batch(number, 8, torch.float32))
        ids = torch.arange(len(whole.lengths)) + 1000 * number
        whole = whole.replace(ids=ids, collision=None)
        [whole] = self.objective.with_advantages([whole])
        own = whole.select(range(self.comm.rank, len(whole.lengths), self.comm.size))
        tables = own.split(self.parts)
        plan = phase.plan(tables, self.state, self.comm, clauses=True)
        sequences = [([4, 5], [4 + t % 16 for t in range(n)]) for n in own.lengths.tolist()]
        scores = [{"logprobs": t.logprobs - 0.01, "entropy": t.entropy} for t in tables]
        observed = observed_update(phase, dict(self.state), tables, plan, sequences, scores)
        record.update(observed, {"loss/total": 0.5})
        self.state["update"] += 1


def run(folder: Path, preset: str, comm: Comm | None = None, steps: int = 4, **how: Any) -> None:
    """A run of some steps."""
    comm, config = comm or Comm(), config_of(preset)
    record = RunRecord(folder, config, build_tokenizer(), comm)
    trainer = Trainer(config.resolved_objective(), comm, **how)
    for number in range(1, steps + 1):
        trainer.step(record, number)
    record.close()


@pytest.mark.parametrize("preset", ["stapo", "20-entropy", "ar-lopti", "stare", "tis", "kl-cov"])
def test_the_recorded_objective_gives_the_recorded_weights_to_the_bit(
    tmp_path: Path, preset: str
) -> None:
    on_ranks(2, lambda comm: run(tmp_path / "run", preset, comm, steps=2, updates=2))
    updates = list(read_tables(tmp_path / "run"))
    count = 2 * len(load_preset(preset).objective.phases)
    assert [(u.step, u.update) for u in updates] == [
        (step, update) for step in (1, 2) for update in range(1, count + 1)
    ]
    for update in updates:
        plan = update.objective.plan([update.table], update.state)
        assert torch.equal(plan.weights[0], update.weights)


@pytest.mark.parametrize("parts", [1, 5])
def test_the_record_is_the_same_at_any_micro_batches_and_ranks(tmp_path: Path, parts: int) -> None:
    """To the byte, and so are the counts of all tokens by clause in its metadata."""
    run(tmp_path / "one", "20-entropy", steps=2)
    on_ranks(2, lambda comm: run(tmp_path / "two", "20-entropy", comm, steps=2, parts=parts))
    for step in (1, 2):
        one, two = (
            step_file(tmp_path / name, "records", step).read_bytes() for name in ("one", "two")
        )
        assert one == two
    for update, table in zip(
        Record(tmp_path / "one").updates, read_tables(tmp_path / "two"), strict=True
    ):
        [clause] = update.clauses
        assert clause.tokens == int((table.codes >= 0).sum()) > 50
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")


def test_a_line_counts_each_response_of_a_step_once(tmp_path: Path) -> None:
    whole = awkward_batch(1, 8, torch.float32)
    on_ranks(2, lambda comm: run(tmp_path / "run", "grpo", comm, steps=1, updates=3))
    [line] = metrics(tmp_path / "run")
    decided = whole.rewards[~whole.rewards.isnan()].double()
    groups = [whole.rewards[whole.groups == g] for g in whole.groups.unique()]
    known = [(len(each), each[~each.isnan()].unique()) for each in groups]
    assert line["step"] == 1
    assert line["reward/mean"] == pytest.approx(float(decided.mean()))
    assert line["reward/std"] == pytest.approx(float(decided.std(correction=0)))
    assert line["reward/undecided"] == len(whole.rewards) - len(decided)
    assert (line["reward/groups"], line["response/count"]) == (len(groups), len(whole.rewards))
    assert line["groups/without_signal"] == sum(n > 1 and len(each) < 2 for n, each in known)
    assert line["tokens/sampled"] == len(whole)
    assert line["loss/total"] == 0.5
    assert "reward/accuracy" not in line  # nothing says what is right


def test_dropped_tokens_are_a_share_of_the_tokens_of_all_updates(tmp_path: Path) -> None:
    """Three updates on the same tokens, of which each drops four fifths."""
    folder = tmp_path / "run"
    on_ranks(2, lambda comm: run(folder, "20-entropy", comm, steps=1, updates=3))
    [line] = metrics(folder)
    plans = [u.objective.plan([u.table], u.state, clauses=True) for u in read_tables(folder)]
    assert line["tokens/step"] == sum(int(p.clauses.in_phase.sum()) for p in plans if p.clauses)
    share = line["tokens/dropped"] / line["tokens/step"]
    assert share == pytest.approx(1 - line["objective/kept_fraction"]) == pytest.approx(0.8, 0.05)
    shown = f"{100 * share:.0f}%"
    assert f"({shown})" in repr(rlobj.inspect(folder, dropped=True))
    report = rlobj.report(folder, tmp_path / "report.html").read_text()
    assert re.search(rf"tokens dropped</th>\s*<td[^>]*>[^<]*\({shown}\)", report)
    page = rlobj.write_inspection_page(folder).read_text()
    assert re.search(rf"dropped</dt>\s*<dd[^>]*>{line['tokens/dropped']:,.0f} \({shown}\)<", page)


def test_gradients_are_unknown_without_the_collision_of_the_policy(tmp_path: Path) -> None:
    run(tmp_path / "run", "20-entropy", steps=1)
    [line] = metrics(tmp_path / "run")
    assert not [name for name in line if name.startswith("gradient/")]
    assert "entropy/predicted_change" not in line
    assert {"entropy/q50", "tokens/dropped"} <= line.keys()
    rows = read_records(tmp_path / "run")
    assert rows["gradient_norm"].null_count == len(rows) > 0
    [note] = rlobj.replay(tmp_path / "run").notes
    assert "its trainer does not compute the column collision" in note


@pytest.mark.parametrize("inside", [False, True])
def test_a_resumed_run_repeats_no_row(tmp_path: Path, inside: bool) -> None:
    """It continues from a checkpoint between two steps, or from one inside a step."""
    run(tmp_path / "whole", "20-entropy", updates=2)
    config, comm = config_of("20-entropy"), Comm()
    record = RunRecord(tmp_path / "run", config, build_tokenizer(), comm)
    trainer = Trainer(config.resolved_objective(), comm, updates=2)
    for number in (1, 2):
        trainer.step(record, number)
    state = dict(trainer.state)
    if inside:
        trainer.update(record, trainer.objective, 3)
    saved = json.loads(json.dumps(record.state()))
    trainer.step(record, 3)  # after the checkpoint; lost
    record.close()
    record = RunRecord(tmp_path / "run", config, build_tokenizer(), comm, saved)
    trainer.state = state
    for number in (3, 4):
        trainer.step(record, number)
    record.close()
    whole, found = (
        {file.name: file.read_bytes() for file in (tmp_path / name / "records").iterdir()}
        for name in ("whole", "run")
    )
    assert len(whole) == 4
    assert found == whole
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    tables = [sorted(f.name for f in (tmp_path / n / "tables").iterdir()) for n in ("whole", "run")]
    assert tables[0] == tables[1]


def test_the_loop_on_the_page_records_a_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")
    [code] = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "RunRecord" in block
    ]
    names: dict[str, Any] = {}
    exec(code, names)
    config, comm = config_of("20-entropy"), Comm()
    rollouts = []
    for number in (1, 2):
        whole = awkward_batch(number, 8, torch.float32).replace(sampler_logprobs=None)
        sequences = [([4], [5] * n) for n in whole.lengths.tolist()]
        scores = [{"logprobs": t.logprobs, "entropy": t.entropy} for t in whole.split(2)]
        rollouts.append((whole.split(2), sequences, scores))
    saved = names["recorded"](tmp_path / "run", config, build_tokenizer(), comm, rollouts)
    assert saved["step"] == 2
    assert [line["train/grad_norm"] for line in metrics(tmp_path / "run")] == [1.0, 1.0]
    assert rlobj.replay(tmp_path / "run").reproduced == rlobj.replay(tmp_path / "run").population


def test_a_folder_with_a_run_is_refused_and_nothing_in_it_changes(tmp_path: Path) -> None:
    run(tmp_path / "run", "stapo", steps=1)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="already holds the record of a run"):
        run(tmp_path / "run", "stapo")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_that_was_copied_without_the_record_begins_a_new_one(tmp_path: Path) -> None:
    config, comm = config_of("stapo"), Comm()
    state = {"step": 3}
    record = RunRecord(tmp_path / "run", config, build_tokenizer(), comm, state)
    Trainer(config.resolved_objective(), comm).step(record, 4)
    record.close()
    assert [line["step"] for line in metrics(tmp_path / "run")] == [4]
