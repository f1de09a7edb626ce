"""The checks of fresh samples, on samples of known distributions."""

from __future__ import annotations

import math

import pytest
import torch

from rlobj.base.errors import RunError
from rlobj.objectives.statistics import SingleProcess
from rlobj.runs.sampler_metrics import sampler_gap
from rlobj.samplers import Live, Received, Sent
from rlobj.samplers.weights import PARTS, columns, digest
from rlobj.settings.sampling import SamplingConfig
from rlobj.training.rollouts.weight_checks import (
    Probes,
    SampleChecks,
    SamplerGap,
    Synchronizer,
    check_gap,
)

NOISE = {None: 3e-7, torch.bfloat16: 4e-3}
ARITHMETICS = pytest.mark.parametrize("arithmetic", list(NOISE), ids=["float32", "bfloat16"])


def drawn(arithmetic, seed=0, tokens=1000, scale=2.0, temperature=1.0, top_p=1.0):
    """The policy's columns and the sampler's log-probs of tokens, both rounded."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(tokens, 20, generator=generator, dtype=torch.double)
    policy = logits.log_softmax(-1)
    order = (logits / temperature).softmax(-1).sort(-1, descending=True)
    cut = order.values.cumsum(-1) - order.values >= top_p
    cut = torch.zeros_like(cut).scatter(-1, order.indices, cut)
    drawn_from = (logits / temperature).masked_fill(cut, -math.inf).log_softmax(-1)
    chosen = drawn_from.exp().multinomial(1, generator=generator)

    def rounded(logprobs):
        noise = torch.randn(tokens, generator=generator, dtype=torch.double)
        return (logprobs.gather(-1, chosen)[:, 0] + NOISE[arithmetic] * noise).float()

    return {
        "logprobs": rounded(policy),
        "entropy": -(policy.exp() * policy).sum(-1).float(),
        "collision": (2 * policy).exp().sum(-1).float(),
    }, rounded(drawn_from)


def measured(*arguments, **settings):
    columns, sampler = drawn(*arguments, **settings)
    return sampler_gap(columns["logprobs"], sampler, SingleProcess(), columns["entropy"])


@ARITHMETICS
def test_no_alarm_in_two_hundred_sound_steps_of_any_size_and_entropy(arithmetic):
    checks, state = SampleChecks(SamplingConfig(), arithmetic, SingleProcess()), {}
    for seed in range(200):
        tokens, scale = (5, 32, 256, 2000)[seed % 4], (8.0, 0.001, 0.02, 1.0)[seed // 4 % 4]
        columns, sampler = drawn(arithmetic, seed, tokens, scale)
        found = checks.compare(columns, sampler, state)
    assert state["sampler_gap"] == pytest.approx(NOISE[arithmetic], rel=0.9)
    assert abs(found["sampler/excess"]) < 5 * found["sampler/excess_error"]


@pytest.mark.parametrize("change", [{"temperature": 0.8}, {"top_p": 0.9}], ids=str)
def test_choices_show_what_the_reported_log_probs_hide_within_two_steps(change):
    checks, state = SampleChecks(SamplingConfig(), None, SingleProcess()), {}

    def step(seed, **change):
        columns, _ = drawn(None, seed, tokens=4000, scale=4.0, **change)
        checks.compare(columns, columns["logprobs"], state)

    for seed in range(20):
        step(seed)
    with pytest.raises(SamplerGap, match="it chooses tokens that are too likely"):
        step(20, **change), step(21, **change)


@ARITHMETICS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.9}, "temperature is about 0.63; expected 0.7"),
        ({"temperature": 1.1}, "temperature is about 0.77; expected 0.7"),
        ({"top_p": 0.95}, "It draws from a part of the policy's tokens only"),
    ],
)
@pytest.mark.parametrize("size", [{"tokens": 64}, {"scale": 0.5}, {"scale": 4.0}], ids=str)
def test_another_distribution_is_named(arithmetic, change, message, size):
    with pytest.raises(SamplerGap, match=message):
        check_gap(measured(arithmetic, **size, **change), "auto", arithmetic, temperature=0.7)


@pytest.mark.parametrize(
    ("gap", "bias", "message"),
    [
        (0.022, 0.022, "part of the policy's tokens"),
        (0.09, 0.05, "Some are lower.*settings are others there"),
        (7.45, 7.45, "No top_p or top_k does so much.*settings are others there"),
    ],
)
def test_a_bias_that_no_top_p_can_have_is_not_blamed_on_it(gap, bias, message):
    found = {"sampler/logprob_gap": gap, "sampler/bias": bias, "sampler/ratio_max": 2.0}
    with pytest.raises(SamplerGap, match=message):
        check_gap(found, "auto", torch.bfloat16)


@pytest.mark.parametrize(
    ("arithmetic", "first", "accepted"),
    [(None, 5e-7, 1e-5), (None, 1e-5, 1e-4), (None, 1.0, 1e-3), (torch.bfloat16, 0.004, 0.04)],
)
def test_the_limit_is_ten_times_the_first_gap_between_rounding_and_the_absolute_limit(
    arithmetic, first, accepted
):
    def found(gap):
        return {"sampler/logprob_gap": gap, "sampler/ratio_max": 1.0}

    check_gap(found(accepted), "auto", arithmetic, first)
    for gap in (1.01 * accepted, math.nan):
        with pytest.raises(SamplerGap, match="does not sample from the policy"):
            check_gap(found(gap), "auto", arithmetic, first)


def probed(arithmetic, follow, moves=1e-4, syncs=20, kept=0.0):
    """The metrics of syncs at which the engine is at the trainer's values of follow(sync)."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(syncs, 300, generator=generator, dtype=torch.double).mul(moves).cumsum(0)
    noise = NOISE[arithmetic] * torch.randn(2, syncs, 300, generator=generator).double()
    for sync in range(1, syncs):  # weights that change little are rounded much as before
        noise[:, sync] = kept * noise[:, sync - 1] + math.sqrt(1 - kept**2) * noise[:, sync]
    probes = Probes(SingleProcess())
    probes.sequences = [([0], [0] * 15)] * 20
    for sync in range(syncs):
        seen = follow(sync)
        yield probes.check(values[sync] + noise[0, sync], values[seen] + noise[1, seen])


@ARITHMETICS
@pytest.mark.parametrize("moves", [0.0, 1e-7, 1e-4, 0.1])
def test_an_engine_that_follows_the_trainer_is_accepted(arithmetic, moves):
    for found in probed(arithmetic, lambda sync: sync, moves):
        assert abs(found.get("sampler/lag", 0.0)) < 0.05


@ARITHMETICS
@pytest.mark.parametrize("moves", [1e-4, 0.1])
def test_frozen_log_probs_stop_the_run_within_two_syncs(arithmetic, moves):
    found = probed(arithmetic, lambda sync: min(sync, 5), moves)
    for _ in range(6):
        next(found)
    with pytest.raises(SamplerGap, match="does not use the weights of the last sync"):
        next(found), next(found)


@pytest.mark.parametrize("kept", [0.0, 0.8])
@pytest.mark.parametrize("moves", [2e-3, 5e-3, 8e-3, 0.02])
def test_rounding_as_large_as_the_change_of_the_policy_is_no_lag(moves, kept):
    for found in probed(torch.bfloat16, lambda sync: sync, moves, syncs=200, kept=kept):
        assert abs(found.get("sampler/lag", 0.0)) < 0.05


@pytest.mark.parametrize(
    ("arithmetic", "moves", "syncs"),
    [(None, 1e-4, 2), (torch.bfloat16, 8e-3, 8), (torch.bfloat16, 0.02, 4)],
)
def test_log_probs_of_the_sync_before_stop_the_run(arithmetic, moves, syncs):
    found = probed(arithmetic, lambda sync: max(sync - 1, 0), moves, syncs=syncs, kept=0.5)
    with pytest.raises(SamplerGap, match=r"They lack \d+% of the change"):
        list(found)


def test_arithmetic_that_differs_by_no_more_than_rounding_is_no_lag():
    generator = torch.Generator().manual_seed(0)
    change = 0.06 * torch.randn(20, 300, generator=generator).double()
    noise = 4e-3 * torch.randn(2, 20, 300, generator=generator).double()
    probes = Probes(SingleProcess())
    for moved, t, e in zip(change, change.cumsum(0) + noise[0], noise[1], strict=True):
        probes.check(t, t + e - 0.06 * moved)


class Engine:
    """Computes with a copy of what it gets, with 1 added to some values of the next copies."""

    dtype = None

    def __init__(self, wrong: slice | None = None) -> None:
        self.wrong, self.asked = wrong, []

    def sync(self, weights, version: int) -> None:
        arrived = Sent(weights)
        self.copies = {name: tensor.clone() for name, tensor in arrived}
        if self.wrong is not None and version:
            self.copies["layers.0.w"].view(-1)[self.wrong] += 1
        self.answer = Received(version, arrived.digests)

    def received(self) -> Received:
        return self.answer

    def live(self, part: int | None) -> Live:
        self.asked.append(part)
        copies = self.copies.items()
        return Live({n: (n, digest(columns(self.read(t), part))) for n, t in copies})

    def read(self, tensor):
        return tensor


class Transposed(Engine):
    def read(self, tensor):
        return tensor.t()


def steps(engine, versions, monkeypatch, large=0):
    """Syncs, each with the check before a rollout: of a matrix with 100 columns and a vector."""
    monkeypatch.setattr("rlobj.training.rollouts.weight_checks._LARGE", large)
    names = {"layers.0.w": (50, 100), "layers.0.b": (7,)}
    synchronizer = Synchronizer(engine, lambda: ((n, torch.randn(s)) for n, s in names.items()))
    for version in versions:
        synchronizer.push(version)
        yield version
        synchronizer.check()


def test_all_is_read_first_and_when_a_version_is_sent_again_and_else_the_part_read_before(
    monkeypatch,
):
    list(steps(engine := Engine(), [0, 1, 2, 2, 3], monkeypatch))
    assert engine.asked == [None, 1, 2, 2, 3, 3, 4, None, 4, 5, 5, 6]


@pytest.mark.parametrize(("engine", "large"), [(Transposed(), 0), (Engine(), 5008)])
def test_a_small_model_and_an_engine_with_another_order_are_always_read_whole(
    monkeypatch, engine, large
):
    list(steps(engine, range(4), monkeypatch, large))
    assert {*engine.asked} == {None}


@pytest.mark.parametrize("column", [0, 42, 99])
def test_a_column_that_is_wrong_after_every_sync_is_found_within_the_number_of_parts(
    monkeypatch, column
):
    engine = Engine(slice(column, None, 100))
    with pytest.raises(RunError, match=r"layers\.0\.w: has other values"):
        list(steps(engine, range(PARTS + 1), monkeypatch))


def test_a_tensor_that_is_wrong_after_a_sync_is_found_in_this_sync(monkeypatch):
    synced = steps(Engine(slice(None)), range(9), monkeypatch)
    assert next(synced) == 0
    with pytest.raises(RunError, match=r"layers\.0\.w: has other values"):
        next(synced)


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
