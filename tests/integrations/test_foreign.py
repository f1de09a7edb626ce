"""Logs of other trainers as runs: what they carry is kept, and what they lack is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
import trl_runs
from pyarrow import parquet
from trl import GRPOTrainer
from typer.testing import CliRunner

import rlobj
from rlobj import TokenBatch, convert_log, load_preset, read_records, read_tables
from rlobj.base.errors import ConfigError, DataError
from rlobj.models.embedded import build_tokenizer
from rlobj_cli.app import app

TOKENIZER = build_tokenizer()
ROW = {"input": "1+1=", "output": "2", "score": 1.0}


def sequence(generator: torch.Generator, prompt: int, length: int) -> dict[str, Any]:
    """A line of prime-rl's token export: columns over prompt and response, as its writer has it."""
    total = prompt + length

    def numbers(scale: float) -> list[float]:
        return (torch.rand(total, generator=generator) * scale).tolist()

    surprisal = numbers(9.0)
    gap = numbers(0.1)
    advantage = float(torch.randn((), generator=generator))
    return {
        "schema_version": 1,
        **dict.fromkeys(("step", "rank", "micro_step", "micro_sequence_idx"), 0),
        "env_name": "sums",
        "token_ids": torch.randint(4, len(TOKENIZER), (total,), generator=generator).tolist(),
        "position_ids": list(range(total)),
        "loss_mask": [False] * prompt + [True] * length,
        "advantages": [advantage] * total,
        "inference_logprobs": [-s - g for s, g in zip(surprisal, gap, strict=True)],
        "trainer_logprobs": [-s for s in surprisal],
        "entropy": numbers(2.0),
        "rl_weights": [None] * total,
    }


@pytest.fixture
def exports(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Two steps of two ranks, and the sequences of the first step in the order of the ranks."""
    generator = torch.Generator().manual_seed(0)
    lines: list[dict[str, Any]] = []
    for step in (1, 2):
        folder = tmp_path / "token_exports" / f"step_{step}"
        folder.mkdir(parents=True)
        for rank in (0, 1):
            mine = [sequence(generator, 3, n) for n in (40, 7, 200)]
            text = "".join(f"{json.dumps(line)}\n" for line in mine)
            (folder / f"rank_{rank}.jsonl").write_text(text)
            lines += mine if step == 1 else []
        (folder / "STABLE").touch()
    (tmp_path / "token_exports" / "step_3").mkdir()  # no rank has finished it
    return tmp_path / "token_exports", lines


def whole(lines: list[dict[str, Any]]) -> TokenBatch:
    """The response tokens of sequences as the TokenBatch that a loop of one's own would make."""

    def column(name: str) -> list[float]:
        return [
            x for line in lines for x, m in zip(line[name], line["loss_mask"], strict=True) if m
        ]

    return TokenBatch(
        lengths=[sum(line["loss_mask"]) for line in lines],
        groups=range(len(lines)),
        ids=range(len(lines)),
        logprobs=torch.tensor(column("trainer_logprobs")),
        entropy=torch.tensor(column("entropy")),
        sampler_logprobs=torch.tensor(column("inference_logprobs")),
        advantages=torch.tensor(column("advantages")),
    )


def test_prime_rls_tokens_are_planned_over_all_ranks_of_a_step(
    exports: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    source, lines = exports
    found = convert_log("prime-rl", source, tmp_path / "run", TOKENIZER, objective="stapo")
    assert (found.steps, found.tokens) == ((1, 2), 988)
    first = next(iter(read_tables(found.run)))
    plan = load_preset("stapo").objective.plan([whole(lines)])
    assert torch.equal(first.weights, plan.weights[0])
    assert 0 < int((first.weights == 0).sum()) < len(first.weights)
    dropped = rlobj.inspect(found.run, dropped=True)
    assert dropped.count == sum((u.weights == 0).sum() for u in read_tables(found.run))
    rows = read_records(found.run, ["prob", "sampler_gap", "reward", "entropy"], steps=[1])
    assert len(rows) == len(first.weights)  # every token
    prob = torch.tensor(rows["prob"].to_pylist())
    torch.testing.assert_close(prob, whole(lines).logprobs.exp())
    assert min(rows["sampler_gap"].to_pylist()) >= 0
    assert rows["reward"].null_count == len(rows)


def test_other_objectives_replay_on_prime_rls_tokens_with_its_advantages(
    exports: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    run = convert_log("prime-rl", exports[0], tmp_path / "run", TOKENIZER).run
    found = rlobj.replay(run, ["20-entropy", "stapo", "prob < 0.1", "reward > 0"])
    assert found.reproduced == found.population == 988
    assert list(found.refused) == ["reward > 0"]
    names = found.objectives["name"].to_pylist()
    assert names[:3] == ["recorded", "20-entropy", "stapo"]
    kept = dict(zip(names, found.objectives["kept"].to_pylist(), strict=True))
    assert abs(kept["20-entropy"] - 0.2 * 988) < 3


def test_prime_rls_tokens_without_a_weight_are_left_out(
    exports: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    source, lines = exports
    lines[0]["rl_weights"] = [0.0] * 10 + [1.0] * 33
    text = "".join(f"{json.dumps(line)}\n" for line in lines[:3])
    (source / "step_1" / "rank_0.jsonl").write_text(text)
    assert convert_log("prime-rl", source, tmp_path / "run", TOKENIZER).tokens == 988 - 7


def test_trls_completions_carry_advantages_rewards_and_groups(tmp_path: Path) -> None:
    args = trl_runs.config(
        tmp_path / "trl", log_completions=True, max_steps=3, steps_per_generation=8
    )
    trainer = trl_runs.trainer(GRPOTrainer, args)
    trainer.train()
    source = tmp_path / "trl" / "completions"
    found = convert_log("trl", source, tmp_path / "run", TOKENIZER)
    assert found.steps == (1, 3)  # the second step trains on the completions of the first
    logged = parquet.read_table(source / "completions_00001.parquet").to_pylist()
    first = next(iter(read_tables(found.run)))
    table = first.table
    assert table.rewards is not None
    assert table.advantages is not None
    assert table.rewards.tolist() == [row["reward"] for row in logged]
    starts = table.advantages[(table.lengths.cumsum(0) - table.lengths).clamp(max=len(table) - 1)]
    expected = torch.tensor([row["advantage"] for row in logged])
    assert torch.equal(starts[table.lengths > 0], expected[table.lengths > 0])
    assert table.groups.unique(return_counts=True)[1].tolist() == [4] * 16
    texts = [TOKENIZER.decode(tokens) for _, tokens in first.sequences]
    assert [t.replace(" ", "") for t in texts] == [r["completion"].replace(" ", "") for r in logged]
    replayed = rlobj.replay(found.run, ["dr-grpo", "advantage > 0", "prob < 0.1"])
    assert list(replayed.refused) == ["prob < 0.1"]
    assert "no log-probs were recorded" in replayed.refused["prob < 0.1"]


def test_a_converted_log_has_no_finding_about_its_objective(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log").mkdir()
    rows = [ROW, {**ROW, "output": "3", "score": 0.0}]
    (tmp_path / "log" / "1.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = convert_log("verl", tmp_path / "log", tmp_path / "run", TOKENIZER).run
    [diagnosis] = rlobj.diagnose(run).runs
    assert "inert-setting" in diagnosis.checked
    assert not diagnosis.findings
    assert not caplog.text


def test_trls_log_with_several_columns_of_numbers_needs_their_names(tmp_path: Path) -> None:
    rows = {
        "step": [1, 1],
        "prompt": [[{"role": "user", "content": "1+2="}]] * 2,
        "completion": [[{"role": "assistant", "content": text}] for text in ("3", "4")],
        "right": [1.0, 0.0],
        "tidy": [0.5, None],
        "speed": [7.0, 8.0],
        "advantage": [0.7, -0.7],
    }
    parquet.write_table(pyarrow.table(rows), tmp_path / "completions_00001.parquet")
    for names in ([], ["nope"]):
        with pytest.raises(
            ConfigError, match=r"3 columns of numbers: right, tidy, speed.*rewards="
        ):
            convert_log("trl", tmp_path, tmp_path / "run", TOKENIZER, rewards=names)
    found = convert_log("trl", tmp_path, tmp_path / "run", TOKENIZER, rewards=["right", "tidy"])
    table = next(iter(read_tables(found.run))).table
    assert table.rewards is not None
    assert table.rewards.tolist() == [1.5, 0.0]
    assert len(table.groups.unique()) == 1


def dump(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A step of verl's rollout dump."""
    folder.mkdir(exist_ok=True)
    (folder / "7.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.mark.parametrize("uids", [False, True])
def test_verls_scores_become_advantages_of_their_groups(tmp_path: Path, uids: bool) -> None:
    """Rows of a group need not stand together; newer versions name the group in `uid`."""
    rows = [
        {
            "input": f"{i % 2}+1=",
            "output": "12"[: 1 + i % 3 % 2],
            "gts": None,
            "score": float(i < 3),
        }
        for i in range(6)
    ]
    if uids:
        for i, row in enumerate(rows):
            row |= {"uid": f"a_{i % 2}_{i}_0", "input": "1+1="}
    found = convert_log("verl", dump(tmp_path / "dump", rows), tmp_path / "run", TOKENIZER)
    [update] = read_tables(found.run)
    assert update.step == 7
    table = update.table
    groups = table.groups - table.groups.min()
    assert groups.tolist() == [0, 1, 0, 1, 0, 1]
    assert table.advantages is not None
    formula = load_preset("dapo-loss").objective.advantage
    wanted = formula(torch.tensor([float(i < 3) for i in range(6)]), groups, table.lengths.double())
    torch.testing.assert_close(table.advantages, table.spread(wanted).to(table.advantages))


def test_an_objective_that_reads_what_the_log_lacks_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    source = dump(tmp_path / "dump", [{"input": "1+1=", "output": "2", "score": 1.0}])
    with pytest.raises(ConfigError) as caught:
        convert_log("verl", source, tmp_path / "run", TOKENIZER, objective="stapo")
    for text in ("verl has no column 'entropy', which", "no column 'logprobs', which", "dr-grpo"):
        assert text in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("trainer", "rows", "message"),
    [
        ("verl", [{"input": "1+1=", "output": "2"}], r"7\.jsonl.*1.*'score' is missing; expected"),
        ("verl", [{**ROW, "score": "x"}], "'score' is 'x'; expected finite numbers"),
        ("verl", [{**ROW, "score": 1e999}], "'score' is inf; expected finite numbers"),
        ("verl", [ROW, {**ROW, "output": 3}], r"2.*'output' is 3; expected a text"),
        ("verl", [{**ROW, "output": "\ud800"}], "'output' is .*; expected a text"),
        ("verl", [], "no response of verl"),
        ("slime", [], "no logs of 'slime' can be converted"),
    ],
)
def test_what_is_no_log_is_refused_with_its_line_and_leaves_nothing(
    tmp_path: Path, trainer: str, rows: list[dict[str, Any]], message: str
) -> None:
    source = dump(tmp_path / "dump", rows)
    (source / "6.jsonl").write_text(json.dumps(ROW) if rows else "")
    with pytest.raises((ConfigError, DataError), match=message):
        convert_log(trainer, source, tmp_path / "run", TOKENIZER)
    assert [file.name for file in tmp_path.iterdir()] == ["dump"]
    if rows:
        (source / "7.jsonl").write_text(json.dumps(ROW))
        assert convert_log(trainer, source, tmp_path / "run", TOKENIZER).steps == (6, 7)
        with pytest.raises(ConfigError, match="exists already: delete it, or choose"):
            convert_log(trainer, source, tmp_path / "run", TOKENIZER)


def test_the_folder_of_the_log_is_found_in_the_folder_of_the_run(tmp_path: Path) -> None:
    log = tmp_path / "completions"
    log.mkdir()
    parquet.write_table(pyarrow.table({"step": [1]}), log / "completions_00001.parquet")
    with pytest.raises(DataError, match=r"expected files completions_\*.* Did you mean .*") as trl:
        convert_log("trl", tmp_path, tmp_path / "run", TOKENIZER)
    assert str(trl.value).endswith(f"Did you mean {log}?")
    (tmp_path / "token_exports" / "step_1").mkdir(parents=True)
    (tmp_path / "token_exports" / "step_1" / "rank_0.jsonl").touch()
    with pytest.raises(DataError) as prime:
        convert_log("prime-rl", tmp_path, tmp_path / "run", TOKENIZER)
    assert str(prime.value).endswith(f"Did you mean {tmp_path / 'token_exports'}?")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("token_ids", [4, 5, 10_000_000, 6], "ids of the tokenizer's 20 tokens"),
        ("token_ids", [4, 5, -1, 6], "ids of the tokenizer's 20 tokens"),
        ("token_ids", [4, 5, 6.5, 6], "ids of the tokenizer's 20 tokens"),
        ("token_ids", [4, 5, "x", 6], "'token_ids' is .*; expected finite numbers"),
        ("entropy", [1.0] * 5, "expected a list of 4 numbers"),
        ("loss_mask", None, "expected a list of 4 numbers"),
    ],
)
def test_a_damaged_line_of_prime_rl_is_named(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    good = sequence(torch.Generator().manual_seed(0), 2, 2)
    folder = tmp_path / "token_exports" / "step_1"
    folder.mkdir(parents=True)
    (folder / "STABLE").touch()
    lines = [good, {**good, name: value}]
    (folder / "rank_0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(DataError, match=rf"rank_0\.jsonl.*2.*{message}"):
        convert_log("prime-rl", folder.parent, tmp_path / "run", TOKENIZER)


def test_the_commands_read_a_converted_run(
    exports: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    run = convert_log("prime-rl", exports[0], tmp_path / "run", TOKENIZER, objective="stapo").run
    for command in (["inspect"], ["inspect", "--html"], ["replay", "--preset", "20-entropy"]):
        done = CliRunner().invoke(app, [command[0], str(run), *command[1:]])
        assert done.exit_code == 0, done.output
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2]
    assert "reward/mean" not in metrics[0]
    assert not math.isnan(metrics[0]["policy/entropy"])
