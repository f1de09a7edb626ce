"""score_tokens with extreme logits, sizes, types and memory budgets."""

import forked
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring_tools import (
    EVERYTHING,
    SMALL_TILE,
    against_plain,
    assert_close,
    extreme_logits,
    leaves,
    plain,
)
from torch import Tensor

from rlobj.scoring import TokenScores, score_tokens


def present(scores: TokenScores) -> list[Tensor]:
    """The five columns of `score_tokens`."""
    columns = [column for column in vars(scores).values() if column is not None]
    assert len(columns) == 5
    return columns


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_exact(dtype):
    logits, targets = extreme_logits()
    inputs, columns = (logits.to(dtype), torch.eye(300, dtype=dtype)), {**EVERYTHING, "min_p": 0.02}
    scores, (*values, _), slopes = against_plain(inputs, targets, columns=columns)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    assert_close([*values, slopes[0]], **tolerance)
    for column in present(scores):
        assert column.isfinite().all()


@pytest.mark.parametrize("relative", [True, False])
def test_a_row_of_nan_has_no_proxy(relative):
    hidden = torch.ones(3, 4)
    hidden[1] = torch.nan
    weight, targets = torch.randn(300, 4), torch.tensor([1, 2, 3])
    scores = score_tokens(hidden, weight, targets, min_p=0.02, relative=relative)
    assert scores.proxy_logprobs is not None
    assert scores.proxy_logprobs.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_masked_by_the_bias_have_no_effect(head, dtype):
    hidden, weight, targets, bias = (x.to(dtype) if x.is_floating_point() else x for x in head)
    kept = torch.arange(len(bias)) % 3 != 1
    kept[:128] = False  # a whole tile
    targets = kept.nonzero()[targets % int(kept.sum()), 0]
    bias, columns = torch.where(kept, bias, -torch.inf), []
    for part in (torch.ones_like(kept), kept):
        free = leaves(hidden, weight[part], bias[part])
        options = {"min_p": 0.1, "chunk_bytes": SMALL_TILE, **EVERYTHING}
        places = (part.cumsum(0) - 1)[targets]
        scores = score_tokens(*free[:2], places, bias=free[2], **options)
        (scores.logprobs.sum() + scores.entropy.square().sum()).backward()
        columns.append([*vars(scores).values(), *(x.grad for x in free)])
    *whole, weights, biases = columns[0]
    assert not weights[~kept].any()
    assert not biases[~kept].any()
    for found, expected in zip([*whole, weights[kept], biases[kept]], columns[1], strict=True):
        torch.testing.assert_close(found, expected)
    # A cap lets nothing be masked: −inf becomes −softcap.
    capped = score_tokens(hidden, weight, targets, bias=bias, softcap=50.0, chunk_bytes=SMALL_TILE)
    wanted = plain(hidden, weight, targets, bias=bias, softcap=50.0)[0]
    torch.testing.assert_close(capped.logprobs, wanted)


@pytest.mark.parametrize("margin", [5.0, 12.0, 16.0, 30.0])
def test_entropy_and_its_gradient_are_accurate_near_one_hot(margin):
    """In float32, where 1 − π is 0 for a margin above 16 nats."""
    logits = torch.zeros(1, 300)
    logits[0, 7] = margin + torch.tensor(299.0).log()
    free, exact = leaves(logits, logits.double())
    options = {"entropy": True, "chunk_bytes": SMALL_TILE}
    score_tokens(free, torch.eye(300), torch.tensor([7]), **options).entropy.sum().backward()
    plain(exact, torch.eye(300).double(), torch.tensor([7]))[1].sum().backward()
    torch.testing.assert_close(free.grad.double(), exact.grad, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_one_row_give_a_graph(head, rows):
    hidden, weight, targets, bias = head
    inputs, columns = (hidden[:rows], weight, bias), {**EVERYTHING, "min_p": 0.1}
    scores, _, slopes = against_plain(inputs, targets[:rows], columns=columns, chunk_bytes=None)
    for column in present(scores):
        assert column.shape == (rows,)
    assert_close(slopes)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 700) | st.sampled_from([127, 128, 129]), st.integers(1, 800)
)
def test_vocabularies_and_tiles_of_any_size_equal_the_plain_computation(rows, vocabulary, columns):
    generator = torch.Generator().manual_seed(rows + vocabulary)
    sizes = [(rows, 4), (vocabulary, 4), (vocabulary,)]
    inputs = [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    settings = {"columns": {"min_p": 0.3}, "chunk_bytes": columns * rows * 8}
    _, values, slopes = against_plain(inputs, targets, **settings)
    assert_close([*values, *slopes], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_does_not_round_scores_or_gradients(head, dtype):
    targets = head[2]
    inputs = [x.to(dtype) for x in (head[0], head[1], head[3])]

    def run():
        hidden, weight, bias = leaves(*inputs)
        scores = score_tokens(hidden, weight, targets, bias=bias, entropy=True, min_p=0.1)
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
        columns = (scores.logprobs, scores.entropy, scores.proxy_logprobs)
        return [*columns, hidden.grad, weight.grad, bias.grad]

    expected = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run()
    assert all(map(torch.equal, found, expected))


@pytest.mark.slow
def test_peak_memory_is_below_the_size_of_the_logits():
    """For 1024 x 100k, the logits and each copy of them would have 410 MB."""
    program = """
import resource, torch
from rlobj.scoring import score_tokens
torch.set_num_threads(1)
hidden = torch.randn(1024, 32, requires_grad=True)
weight = torch.randn(100_000, 32, requires_grad=True)
targets = torch.randint(100_000, (1024,))
def run(rows):
    scores = score_tokens(hidden[:rows], weight, targets[:rows], entropy=True, min_p=0.02,
                          collision=True, sensitivity=True)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
run(2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(1024)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = forked.run(["-c", program])
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100  # MB
