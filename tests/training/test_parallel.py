"""Every strategy in two real processes, compared with the same training in one process."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from forked import ON_CPUS, run_ranks
from parallel_worker import END, assert_alike

from rlobj.base.addresses import free_port
from rlobj.base.errors import ConfigError
from rlobj.training.parallel import open_parallel

WORKER = Path(__file__).with_name("parallel_worker.py")
TORCH = ("ddp", "fsdp2")
ZERO = ("zero2", "zero3", "zero2 in host memory")  # test_ranks.py has zero3 there
ALL = [
    *TORCH,
    *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.deepspeed]) for name in ZERO),
]
every_strategy = pytest.mark.parametrize("strategy", ALL)
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parallel")


@pytest.fixture(scope="module")
def plain(folder):
    """The same training in one process, without the updates that are skipped."""
    run_ranks([str(WORKER), "plain", str(folder)], 1, timeout=600, **ON_CPUS)
    return json.loads((folder / "plain.json").read_text())


def processes(strategies: tuple[str, ...], folder: Path, torchrun: bool = False) -> Ranks:
    """Run the worker on two ranks, which torchrun may start: it forks them with what it imports."""
    command = [str(WORKER), ",".join(strategies), str(folder)]
    if torchrun:
        start = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--start-method=fork"]
        start += ["--run-path", f"--master_port={free_port()}"]
        run = forked.run([*start, *command], timeout=600, env={**os.environ, **ON_CPUS})
        assert run.returncode == 0, run.stdout + run.stderr
    else:
        run_ranks(command, 2, timeout=600)
    files = [folder / f"{strategies[0]}-{rank}.json" for rank in (0, 1)]
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def of_torch(folder):
    return processes(TORCH, folder, torchrun=True)


@pytest.fixture(scope="module")
def of_zero(folder):
    return processes(ZERO, folder)


@pytest.fixture
def ranks(request, strategy):
    """The results of each rank with the test's strategy."""
    group = "of_torch" if strategy in TORCH else "of_zero"
    return [rank[strategy] for rank in request.getfixturevalue(group)]


# Training


@every_strategy
def test_five_updates_equal_those_of_plain_adamw_in_one_process(strategy, ranks, plain, folder):
    for rank in ranks:
        for ours, alone in zip(rank["steps"], plain["steps"], strict=True):
            assert ours["loss"] == pytest.approx(alone["loss"], rel=1e-5, abs=1e-7)
            assert ours["norm"] == pytest.approx(alone["norm"], rel=1e-5)
        assert [step["rate"] for step in rank["steps"]] == [3e-3 / (i + 1) for i in range(END)]
    assert_alike(folder, strategy, "plain", 1e-5)
    state = torch.load(folder / f"{strategy}.pt")
    assert {float(moments["step"]) for moments in state["moments"].values()} == {END}
    one, other = ranks
    assert one["digest"] == other["digest"]
    assert one["moments before"] == plain["moments before"] > 0  # none before the first update


@every_strategy
def test_an_update_that_must_not_be_applied_changes_nothing_on_any_rank(strategy, ranks, plain):
    for rank in ranks:
        *bad, nothing = rank["mishaps"].values()
        assert not any(math.isfinite(mishap["norm"]) for mishap in bad)
        assert nothing["norm"] == pytest.approx(plain["steps"][2]["norm"], rel=1e-5)
        assert not any(mishap["changed"] for mishap in rank["mishaps"].values())
        assert rank["variants"]["None"]["empty"] == 0.0  # without sequences on any rank


# Other policies


@every_strategy
@pytest.mark.parametrize("kind", ["untied, recomputing", "adapters"])
def test_other_policies_train_as_in_one_process(strategy, kind, ranks, plain):
    alone = plain["variants"][kind]
    for rank in ranks:
        found = rank["variants"][kind]
        for update, expected in zip(found["updates"], alone["updates"], strict=True):
            assert update["loss"] == pytest.approx(expected["loss"], rel=1e-5, abs=1e-7)
            assert update["norm"] == pytest.approx(expected["norm"], rel=1e-5)
        assert found["weights"].keys() == alone["weights"].keys()
        for name, total in alone["weights"].items():
            assert found["weights"][name] == pytest.approx(total, abs=1e-4), name
        assert found["remembered"] == alone["remembered"]
        if kind == "adapters":
            assert found["remembered"]
            assert all("lora_" in name for name in found["remembered"])
            reference = torch.tensor(plain["variants"]["reference"])
            torch.testing.assert_close(torch.tensor(rank["variants"]["reference"]), reference)


@every_strategy
def test_forward_passes_use_the_autocast_dtype_with_float32_weights(strategy, ranks, plain):
    exact = plain["variants"]["None"]["norm"]
    assert plain["variants"]["torch.bfloat16"]["norm"] != pytest.approx(exact, rel=5e-4)
    for rank in ranks:
        whole, half = rank["variants"]["None"], rank["variants"]["torch.bfloat16"]
        assert (whole["forward"], half["forward"]) == (["torch.float32"], ["torch.bfloat16"])
        assert whole["weights"] == half["weights"] == ["torch.float32"]
        assert whole["norm"] == pytest.approx(exact, rel=1e-5)
        assert half["norm"] == pytest.approx(plain["variants"]["torch.bfloat16"]["norm"], rel=1e-3)


# The process group


def test_ranks_exchange_numbers_and_objects(of_torch):
    for rank, found in enumerate(each["exchange"] for each in of_torch):
        assert found["integers"] == [2**54 + 1, 2]  # a float would lose the 1
        assert found["floats"] == 2.0**-39 + 1
        assert found["gather"] == [{"rank": 0}, {"rank": 1}]
        assert found["broadcast"] == "from 0"
        assert found["thread"] == [0, 1, 2.0, 2.0], rank


# Launching


@pytest.mark.parametrize(("option", "strategy"), [("DEEPSPEED", "zero2"), ("FSDP", "fsdp2")])
def test_a_strategy_of_accelerate_launch_is_refused(option, strategy, monkeypatch):
    monkeypatch.setenv(f"ACCELERATE_USE_{option}", "true")
    with pytest.raises(ConfigError, match=rf"_{option}: .* use training\.strategy={strategy}"):
        open_parallel("ddp", max_grad_norm=0.5, autocast=None, seed=0)


@pytest.mark.deepspeed
def test_zero_and_fsdp2_in_one_process_equal_plain_training_and_can_start_again(plain):
    program = (
        "import torch; from rlobj.training.parallel import open_parallel;"
        "from parallel_worker import Session, tiny_policy;"
        "linear = torch.nn.functional.linear;\n"
        "for strategy in ('zero3', 'fsdp2', 'zero2'):\n"
        "    parallel = open_parallel(strategy, max_grad_norm=0.5, autocast=None, seed=0)\n"
        "    session = Session(parallel, tiny_policy())\n"
        "    print(session.update(0)['norm'], torch.distributed.get_world_size())\n"
        "    parallel.close()\n"
        "    assert not torch.distributed.is_initialized()\n"
        "    assert torch.nn.functional.linear is linear\n"
    )
    done = forked.run(["-c", program], cwd=WORKER.parent)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]  # DeepSpeed prints nothing
    assert [size for _, size in lines] == ["1", "1", "1"]
    for norm, _ in lines:
        assert float(norm) == pytest.approx(plain["steps"][0]["norm"], rel=1e-5)
