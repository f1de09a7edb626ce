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

from rlobj.scoring import score_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_exact(dtype):
    logits, targets = extreme_logits()
    inputs, columns = (logits.to(dtype), torch.eye(300, dtype=dtype)), {**EVERYTHING, "min_p": 0.02}
    scores, (*values, _), slopes = against_plain(inputs, targets, columns=columns)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    assert_close([*values, slopes[0]], **tolerance)
    for column in vars(scores).values():
        assert column.isfinite().all()


@pytest.mark.parametrize("temperature", [1e-3, 1e3])
def test_extreme_temperatures_stay_exact(head, temperature):
    """Logits of thousands, where most rows have one certain token, and of thousandths."""
    hidden, weight, targets, _ = head
    targets = targets.clone()
    targets[6:] = (hidden @ weight.T).argmax(-1)[6:]
    inputs = hidden.float(), weight.float()
    _, values, slopes = against_plain(inputs, targets, temperature=temperature)
    assert_close(values, rtol=1e-5, atol=1e-3)  # 1e-3: a rounding of 8000
    for found, expected in slopes:
        assert_close([(found, expected)], rtol=0, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("softcap", [None, 50.0])
def test_tokens_masked_by_the_bias_have_no_effect(head, dtype, softcap):
    hidden, weight, targets, bias = (x.to(dtype) if x.is_floating_point() else x for x in head)
    kept = torch.arange(len(bias)) % 3 != 1
    kept[:128] = False  # a whole tile
    targets = kept.nonzero()[targets % int(kept.sum()), 0]
    columns = []
    for part in (torch.ones_like(kept), kept) if softcap is None else (torch.ones_like(kept),):
        places = (part.cumsum(0) - 1)[targets]
        free = leaves(hidden, weight[part], torch.where(kept, bias, -torch.inf)[part])
        options = {"min_p": 0.1, "softcap": softcap, "chunk_bytes": SMALL_TILE, **EVERYTHING}
        scores = score_tokens(*free[:2], places, bias=free[2], **options)
        (scores.logprobs.sum() + scores.entropy.square().sum()).backward()
        columns.append([*vars(scores).values(), *(x.grad for x in free)])
    assert all(column.isfinite().all() for column in columns[0])
    assert not columns[0][-1][~kept].any()
    assert not columns[0][-2][~kept].any()
    if softcap is not None:  # a cap lets nothing be masked: −inf becomes −softcap
        logprobs = plain(hidden, weight, targets, bias=free[2].detach(), softcap=softcap)[0]
        torch.testing.assert_close(columns[0][0], logprobs)
        return
    masked = [*columns[0][:-2], *(x[kept] for x in columns[0][-2:])]
    for found, expected in zip(masked, columns[1], strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("vocabulary", [1, 7, 127, 128, 129, 257])
def test_vocabularies_of_any_size_equal_the_plain_computation(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    sizes = [(5, 4), (vocabulary, 4), (vocabulary,)]
    inputs = [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]
    targets = torch.randint(vocabulary, (5,), generator=generator)
    _, values, slopes = against_plain(inputs, targets, columns={"min_p": 0.5})
    assert_close([*values, *slopes])


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradcheck_of_every_input_at_once(softcap):
    torch.manual_seed(0)
    sizes = [(3, 4), (130, 4), (130,)]
    inputs = leaves(*(torch.randn(*size, dtype=torch.float64) for size in sizes))
    targets = torch.tensor([0, 129, 64])

    def function(hidden, weight, bias):
        shape = {"temperature": 0.8, "scale": -0.7, "softcap": softcap, "bias": bias}
        options = {"entropy": True, "chunk_bytes": SMALL_TILE, **shape}
        scores = score_tokens(hidden, weight, targets, **options)
        return scores.logprobs, scores.entropy

    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("chunk_bytes", [SMALL_TILE, None])
def test_scores_are_correct_if_several_tokens_share_the_maximum(chunk_bytes):
    hidden, weight = torch.ones(2, 1), torch.zeros(301, 1)
    weight[[3, 130, 290]] = 50.0
    targets = torch.tensor([130, 0])
    scores = score_tokens(
        hidden, weight, targets, entropy=True, collision=True, min_p=1.0, chunk_bytes=chunk_bytes
    )
    third = torch.tensor(1 / 3).log()
    torch.testing.assert_close(scores.logprobs, torch.stack([third, third - 50]))
    torch.testing.assert_close(scores.entropy, -third.expand(2))
    torch.testing.assert_close(scores.collision, torch.full((2,), 1 / 3))
    torch.testing.assert_close(scores.proxy_logprobs, torch.stack([third, torch.tensor(-1e4)]))


@pytest.mark.parametrize("margin", [5.0, 12.0, 16.0, 30.0])
def test_entropy_and_its_gradient_are_accurate_near_one_hot(margin):
    """In float32, where 1 − π is 0 for a margin above 16 nats."""
    logits = torch.zeros(1, 300)
    logits[0, 7] = margin + torch.tensor(299.0).log()
    (free,) = leaves(logits)
    score_tokens(
        free, torch.eye(300), torch.tensor([7]), entropy=True, chunk_bytes=SMALL_TILE
    ).entropy.sum().backward()
    (exact,) = leaves(logits.double())
    logprobs = torch.log_softmax(exact, -1)
    (-(logprobs.exp() * logprobs).sum()).backward()
    torch.testing.assert_close(free.grad.double(), exact.grad, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("options", [{"softcap": 30.0}, {"scale": 0.0625}, {"temperature": 0.6}])
def test_float32_scores_of_large_heads_are_accurate_to_1e_4_nats(options):
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 128), torch.randn(50_257, 128)
    targets = torch.randint(50_257, (50,))
    scores = score_tokens(hidden, weight, targets, entropy=True, **options)
    logprobs, entropy, _ = plain(hidden.double(), weight.double(), targets, **options)
    assert (scores.logprobs - logprobs).abs().max() <= 1e-4
    assert (scores.entropy - entropy).abs().max() <= 1e-4


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_one_row_give_a_graph(head, rows):
    hidden, weight, targets, bias = head
    inputs, columns = (hidden[:rows], weight, bias), {**EVERYTHING, "min_p": 0.1}
    scores, _, slopes = against_plain(inputs, targets[:rows], columns=columns, chunk_bytes=None)
    for column in vars(scores).values():
        assert column.shape == (rows,)
    assert_close(slopes)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 9), vocabulary=st.integers(1, 700), columns=st.integers(128, 800))
def test_tiles_of_any_size_give_the_same_result(rows, vocabulary, columns):
    generator = torch.Generator().manual_seed(rows + vocabulary)
    hidden = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocabulary, (rows,), generator=generator)

    def run(chunk_bytes):
        free, free_weight = leaves(hidden, weight)
        options = {"min_p": 0.3, "chunk_bytes": chunk_bytes, **EVERYTHING}
        scores = score_tokens(free, free_weight, targets, **options)
        (scores.logprobs.sum() + scores.entropy.square().sum()).backward()
        return [*vars(scores).values(), free.grad, free_weight.grad]

    for tiled, whole in zip(run(columns * rows * 8), run(1 << 30), strict=True):
        torch.testing.assert_close(tiled, whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_have_scores_of_float32_accuracy(dtype):
    torch.manual_seed(0)
    hidden = torch.randn(64, 256).to(dtype)
    weight = (torch.randn(5000, 256) / 4).to(dtype)
    targets = torch.randint(5000, (64,))
    inputs = hidden, weight
    scores, values, slopes = against_plain(inputs, targets, temperature=0.9, chunk_bytes=None)
    assert scores.logprobs.dtype == torch.float32
    assert_close(values, rtol=0, atol=1e-4)
    assert [found.dtype for found, _ in slopes] == [dtype, dtype]
    assert_close(slopes, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_does_not_round_scores_or_gradients(head, dtype, with_bias):
    hidden, weight, bias = (x.to(dtype) for x in (head[0], head[1], head[3]))

    def run():
        free = leaves(hidden, weight, *([bias] if with_bias else []))
        options = {"bias": free[2]} if with_bias else {}
        scores = score_tokens(*free[:2], head[2], entropy=True, min_p=0.1, **options)
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
        return [scores.logprobs, scores.entropy, scores.proxy_logprobs, *(x.grad for x in free)]

    expected = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run()
    assert all(map(torch.equal, found, expected))


def test_inputs_are_not_modified(head):
    copies = [x.clone() for x in head]
    hidden, weight, targets, bias = head
    free, free_weight = leaves(hidden, weight)
    score_tokens(
        free, free_weight, targets, bias=bias, entropy=True, softcap=2.0
    ).entropy.sum().backward()
    for before, after in zip(copies, [free, free_weight, targets, bias], strict=True):
        assert torch.equal(before, after.detach())


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
