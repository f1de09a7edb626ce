"""One run on several processes, through the program: the same run, and none left waiting."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import forked
import pyarrow.parquet as parquet
import pytest
from forked import TEST_MODULES
from runs import (
    distance,
    finish,
    metrics,
    program,
    ranks,
    same,
    steps,
    wait_for_step,
    weights,
    write_config,
)
from tiny import tiny_config

import rlobj
from rlobj.base.addresses import free_port
from rlobj.base.yaml import load_yaml
from rlobj.objectives.surrogates import Surrogate
from rlobj.runs.checkpoints import newest_checkpoint, read_state
from rlobj.runs.reading import read_records
from rlobj.runs.tables import read_tables
from rlobj.training import run_training

pytestmark = pytest.mark.slow

STEPS = 6


def config_of(policy, **sections):
    """STARE-C2, whose gate, quantiles and divisor look at all ranks' tokens, and a sample rule."""
    return tiny_config(
        policy,
        "stare-c2",
        objective={
            "drop": "prob < 0.04",
            "controllers": {"W": {"kind": "gate", "target": 2.7, "on": 1.1}},
        },
        sampling={"prompts_per_step": 9, "max_tokens": 3},
        training={"steps": STEPS, "updates_per_step": 2, "micro_batch_tokens": 200},
        evaluation={"every": 3, "samples": 1, "problems": 15},
        checkpoint={"every": 2},
        output={"tables_every": 1},
        **sections,
    )


@pytest.fixture(scope="module")
def alone(policy, tmp_path_factory):
    """The run in one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    run_training(config_of(policy), folder)
    return folder


def assert_close(ours: list[dict], theirs: list[dict]) -> None:
    """Equal metrics, but for rounding; gaps between engines are rounding themselves."""
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        # of the ranks' own micro-batches
        shapes = {f"tokens/{name}" for name in ("useful_share", "rank_balance", "computed")}
        shapes |= {"tokens/shared_share"}
        rounding = {f"sampler/{which}" for which in ("kl", "logprob_gap", "bias", "slope")}
        for name in one.keys() - shapes - rounding:
            expected = other[name] and pytest.approx(other[name], rel=2e-4, abs=1e-5)
            assert one[name] == expected, name


def table(run: Path, kind: str, step: int, *keys: str) -> list[dict]:
    rows = parquet.read_table(run / kind / f"step-{step:06d}.parquet").to_pylist()
    return sorted(rows, key=lambda row: [row[key] for key in keys])


def token_weights(run: Path, step: int) -> dict:
    """The weights of each response, by update and id."""
    return {
        (update.update, int(update.table.ids[i])): update.weights[update.table.rows([i])].tolist()
        for update in read_tables(run, [step])
        for i in range(len(update.table.ids))
    }


@pytest.fixture(scope="module")
def together(policy, tmp_path_factory):
    """The run in two processes."""
    folder = tmp_path_factory.mktemp("together")
    file = write_config(config_of(policy), folder / "run.yaml")
    ranks(["train", "--config", file, "--out", folder / "run"])
    return folder / "run"


def test_two_processes_make_the_run_of_one(alone, together):
    assert distance(weights(alone), weights(together)) < 2e-6
    assert_close(metrics(together), metrics(alone))
    state = read_state(newest_checkpoint(together))
    assert (state.processes, state.strategy) == (2, "ddp")


def test_two_processes_draw_and_select_the_same_tokens(alone, together):
    for step in range(1, STEPS + 1):
        rows = [table(run, "samples", step, "id") for run in (alone, together)]
        assert [r["response"] for r in rows[0]] == [r["response"] for r in rows[1]]
        assert [r["reward"] for r in rows[0]] == [r["reward"] for r in rows[1]]
        assert token_weights(alone, step) == token_weights(together, step)


def test_two_processes_record_the_same_tokens(alone, together):
    """To the row, but for the rounding of the policy's columns."""
    exact = ("step", "update", "response", "position", "token", "text", "before", "after", "kept")
    exact += ("weight", "factor", "effect", "clause", "advantage")
    one, two = (
        sorted(read_records(run, exact).to_pylist(), key=lambda row: [row[k] for k in exact[:4]])
        for run in (alone, together)
    )
    assert one == two
    assert len(one) > 50


@pytest.mark.deepspeed
def test_a_run_goes_on_under_another_strategy_and_number_of_processes(policy, alone, tmp_path):
    """Two steps in two processes under zero2, two in one, one under zero3 and one under fsdp2."""
    run = tmp_path / "run"
    file = write_config(config_of(policy), tmp_path / "run.yaml")
    cut = ["--set", "training.steps=2"]
    ranks(["train", "--config", file, "--out", run, "--strategy", "zero2", *cut])
    rlobj.resume(run, settings={"training.strategy": "ddp", "training.steps": 4})
    for last, strategy, offload, count in ((5, "zero3", "cpu", 2), (STEPS, "fsdp2", "null", 3)):
        rest = ["--set", f"training.steps={last}", "--set", f"training.offload={offload}"]
        ranks(["resume", run, "--strategy", strategy, *rest], count)
    assert distance(weights(alone), weights(run)) < 2e-6
    assert read_state(newest_checkpoint(run)).strategy == "fsdp2"


def ranks_of(process: forked.Forked) -> list[int]:
    """The process ids of the launcher's ranks, in rank order."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children]


def test_a_killed_rank_or_sigterm_ends_the_run_and_resuming_is_exact(policy, together, tmp_path):
    file, run, log = tmp_path / "run.yaml", tmp_path / "run", tmp_path / "log"
    write_config(config_of(policy), file)
    process = program(["train", "--config", file, "--out", run, "--processes", "2"], log)
    wait_for_step(run, 3, process, log)
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    text = finish(process, log, code=1)
    assert "SIGKILL" in text
    assert "Traceback" not in text
    process = program(["resume", run, "--processes", "2"], log)
    wait_for_step(run, steps(run)[-1] + 1, process, log)
    process.terminate()  # all ranks finish the step
    finish(process, log)
    if steps(run)[-1] < STEPS:
        ranks(["resume", run])
    assert same(weights(run), weights(together))
    assert metrics(run) == metrics(together)


class FailsOnTheSecondRank(Surrogate):
    """S = l, and a mistake in the user's code on rank 1, which the trial does not see."""

    def __call__(self, terms):
        if os.environ.get("RANK") == "1" and len(terms.logprobs) > 40:
            raise ZeroDivisionError("a mistake of mine")
        return terms.logprobs


def test_an_error_on_one_rank_stops_all_with_its_traceback(policy, tmp_path):
    file, run, log = tmp_path / "run.yaml", tmp_path / "run", tmp_path / "log"
    write_config(tiny_config(policy, "grpo"), file)
    settings = load_yaml(file.read_text())
    settings["objective"]["surrogate"] = {
        "kind": "custom",
        "target": "test_ranks:FailsOnTheSecondRank",
    }
    file.write_text(json.dumps(settings))
    words = ["train", "--config", file, "--out", run, "--processes", "2"]
    modules = [str(Path(__file__).parent), TEST_MODULES["PYTHONPATH"]]
    process = program(words, log, PYTHONPATH=os.pathsep.join(modules))
    text = finish(process, log, code=1)
    assert "ZeroDivisionError: a mistake of mine" in text
    assert "test_ranks.py" in text


@pytest.mark.deepspeed
def test_ranks_of_accelerate_agree_on_the_folder_and_have_the_strategy(policy, tmp_path):
    """One prompt a step: the second rank never has anything to do.

    tests/training/test_parallel.py starts torchrun, whose variables most tests of this file set.
    """
    file = write_config(config_of(policy), tmp_path / "run.yaml")
    started = ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
    started += [f"--main_process_port={free_port()}", "-m", "rlobj_cli"]
    started += ["train", "--config", str(file), "--strategy=zero3"]
    less = ["sampling.prompts_per_step=1", "training.updates_per_step=1", "training.steps=2"]
    done = forked.run(["-m", *started, *(f"--set={each}" for each in less)], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (tmp_path / "runs").iterdir()
    assert [line["step"] for line in metrics(run)] == [0, 1, 2]
    state = read_state(newest_checkpoint(run))
    assert (state.processes, state.strategy) == (2, "zero3")
