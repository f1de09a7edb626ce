"""Rollouts on disk: exact to the bit, and never executed."""

from __future__ import annotations

import math
import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from limits import within
from runs import make_steps
from tiny import eight_steps

from rlobj.config.run_folder import RunFolder, read_changes, read_run_config
from rlobj.data import Problem
from rlobj.ranks import ProcessGroup
from rlobj.rewards import Graded
from rlobj.samplers import Sample
from rlobj.training.rollouts.collector import Response, Rollout
from rlobj.training.rollouts.journal import Journal, Synchronizer, pack_rollout, unpack_rollout


def response(index: int, tokens: list[int], reward: float, grade: Graded) -> Response:
    sample = Sample([1, 2], tokens, [-0.1 / (n + 1) for n in range(len(tokens))], "a\nß", "stop", 3)
    return Response(
        index, index // 2, Problem(f"p{index}", "1+1=\ud800", "2"), sample, grade, reward
    )


def rollout() -> Rollout:
    right, undecided = Graded(1.0, True, "", "2"), Graded(math.nan, None, "timeout", None)
    responses = [response(0, [5, 6, 7], 1 / 3, right), response(1, [], math.nan, undecided)]
    dead = [response(2, [9], -0.0, Graded(np.float32(0.1), np.bool_(False), "other", ""))]
    return Rollout(responses, dead, 2, {}, {"seed": 0, "epoch": 1, "position": 5, "problems": "x"})


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def test_a_rollout_is_read_back_to_the_bit():
    written = rollout()
    found, recipe = unpack_rollout(pack_rollout(written, "6 steps, None"))
    assert recipe == "6 steps, None"
    assert (found.batches, found.stream) == (2, written.stream)
    for kind in ("responses", "dead"):
        pairs = list(zip(getattr(found, kind), getattr(written, kind), strict=True))
        assert pairs
        for one, other in pairs:
            assert (one.id, one.group, one.problem) == (other.id, other.group, other.problem)
            assert one.sample == other.sample
            assert one.sample.logprobs.tobytes() == other.sample.logprobs.tobytes()
            assert bits(one.reward) == bits(other.reward)
            assert bits(one.grade.reward) == bits(other.grade.reward)
            assert (one.grade.correct, one.grade.reason, one.grade.answer) == (
                other.grade.correct,
                other.grade.reason,
                other.grade.answer,
            )
    assert found.responses[0].sample.prompt is found.responses[1].sample.prompt


def test_an_empty_rollout_is_read_back():
    found, _ = unpack_rollout(pack_rollout(Rollout([], [], 1, {}, {}), ""))
    assert (found.responses, found.dead) == ([], [])


class Executed:
    """Fails the test if it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a file of the run was executed",))


def journal(folder: Path) -> Journal:
    return Journal(RunFolder(folder), ProcessGroup(torch.device("cpu")))


def test_a_pickle_in_the_run_folder_is_not_executed(tmp_path):
    file = tmp_path / "rollouts" / "step-000000" / "rank-0-of-1.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(pickle.dumps(Executed()))
    assert journal(tmp_path).read(0) is None


@pytest.mark.parametrize("how", ["bit", "cut", "empty"])
def test_a_damaged_file_is_sampled_again(tmp_path, how, caplog):
    kept = journal(tmp_path)
    kept.write(0, rollout())
    file = kept.folder / "step-000000" / "rank-0-of-1.json"
    content = bytearray(file.read_bytes())
    assert kept.read(0) is not None
    if how == "bit":
        content[-100] ^= 1
    file.write_bytes({"bit": content, "cut": content[:-40], "empty": b""}[how])
    assert kept.read(0) is None
    assert "step 1 is sampled again: cannot read" in caplog.text


NAMES = ("rank-a-of-b", "rank-0-of-1-2", "rank-1-of-1", "rank-0-of-0", "rank-0-of-99999999999")


@pytest.mark.parametrize("name", [*NAMES, f"rank-1-of-{'9' * 200}"])
def test_a_file_with_another_name_is_not_read(tmp_path, name):
    kept = journal(tmp_path)
    kept.write(0, rollout())
    file = kept.folder / "step-000000" / "rank-0-of-1.json"
    file.rename(file.with_stem(name))
    with within(10, 1 << 30):
        assert kept.read(0) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "sampled"), [("learning_rate: 0.001", [4, 5]), ("max_tokens: 3", [3, 4, 5])]
)
def test_rollouts_of_other_settings_are_sampled_again(policy, tmp_path, setting, sampled):
    """Somebody edits the configuration after step 5; the checkpoint is of step 3.

    The weights of step 3 do not depend on the learning rate of later steps, and those after do.
    """
    config = eight_steps(policy, training={"steps": 6, "learning_rate": 0.002})
    make_steps(config, tmp_path / "run", 5)
    file, name = tmp_path / "run" / "config.resolved.yaml", setting.partition(":")[0]
    file.write_text(re.sub(rf"(?m)^  {name}: .*", f"  {setting}", file.read_text()))
    edited = read_run_config(tmp_path / "run")
    assert edited != config
    assert make_steps(edited, tmp_path / "run", 3, resume=True) == sampled
    [(step, changed, *_)] = read_changes(tmp_path / "run")
    assert step == 3
    assert name in changed


# Weights that a sampler leaves are taken: getting one may need all ranks.


class Taking:
    """A sampler that takes some weights and then fails, or takes no more."""

    dtype = None

    def __init__(self, count: int, error: bool) -> None:
        self.count, self.error = count, error

    def sync(self, weights, version: int) -> None:
        for _ in zip(range(self.count), weights, strict=False):
            pass
        if self.error:
            raise ValueError("of the sampler")

    def received(self) -> None:
        raise ValueError("of the sampler")


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("error", [True, False])
def test_every_rank_takes_all_weights_whatever_its_sampler_does(count, error):
    taken = []

    def weights():
        for index in range(3):
            taken.append(index)
            yield f"{index}.weight", torch.zeros(2)

    synchronizer = Synchronizer(Taking(count, error), weights)  # pyright: ignore
    with pytest.raises(ValueError, match="of the sampler"):
        synchronizer.push(1)
    assert taken == [0, 1, 2]
