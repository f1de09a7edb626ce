"""The checks of fresh samples, on samples of known distributions."""

from __future__ import annotations

import math

import pytest
import torch

from rlobj.objectives.statistics import SingleProcess
from rlobj.runs.loss_metrics import sampler_gap
from rlobj.samplers.gap import SamplerGap, check_gap

NOISE = {None: 3e-7, torch.bfloat16: 4e-3}
ARITHMETICS = pytest.mark.parametrize("arithmetic", list(NOISE), ids=["float32", "bfloat16"])


def drawn(arithmetic, seed=0, tokens=1000, scale=2.0, temperature=1.0, top_p=1.0):
    """The policy's and the sampler's log-probs of tokens, both rounded."""
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

    return rounded(policy), rounded(drawn_from)


def measured(*arguments, **settings):
    return sampler_gap(*drawn(*arguments, **settings), SingleProcess())["sampler/logprob_gap"]


@ARITHMETICS
def test_no_alarm_in_two_hundred_sound_steps_of_any_size_and_entropy(arithmetic):
    first = None
    for seed in range(200):
        tokens, scale = (5, 32, 256, 2000)[seed % 4], (8.0, 0.001, 0.02, 1.0)[seed // 4 % 4]
        gap = measured(arithmetic, seed, tokens, scale)
        check_gap(gap, "auto", arithmetic, first)
        first = first or gap


@pytest.mark.parametrize("change", [{"temperature": 0.9}, {"temperature": 1.1}, {"top_p": 0.95}])
@pytest.mark.parametrize("size", [{"tokens": 64}, {"scale": 0.5}, {"scale": 4.0}], ids=str)
def test_another_distribution_is_refused_in_float32(change, size):
    with pytest.raises(SamplerGap, match="other weights, another temperature, or only a part"):
        check_gap(measured(None, **size, **change), "auto", None)


@pytest.mark.parametrize(
    ("arithmetic", "first", "accepted"),
    [(None, 5e-7, 1e-5), (None, 1e-5, 1e-4), (None, 1.0, 1e-3), (torch.bfloat16, 0.004, 0.04)],
)
def test_the_limit_is_ten_times_the_first_gap_between_rounding_and_the_absolute_limit(
    arithmetic, first, accepted
):
    check_gap(accepted, "auto", arithmetic, first)
    for gap in (1.01 * accepted, math.nan):
        with pytest.raises(SamplerGap, match="does not sample from the policy"):
            check_gap(gap, "auto", arithmetic, first)
