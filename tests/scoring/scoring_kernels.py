"""Tests of the kernels in Triton's interpreter; `test_kernels.py` runs them in a process.

Triton reads TRITON_INTERPRET when a kernel is defined. In the process of all tests the interpreter
would also affect other libraries that use Triton.
"""

import pytest
import torch
from scoring_tools import (
    EVERYTHING,
    SHAPES,
    SMALL_TILE,
    against_plain,
    assert_close,
    check_half_precision,
    extreme_logits,
    half_operands,
    leaves,
    make_head,
    plain,
)

from rlobj.scoring import kernels, score_tokens, tiles, token_scores
from rlobj.scoring.kernels import TritonRows
from rlobj.scoring.rows import Curve, RowGradient, Sums, TorchRows

ALL_SHAPES = [
    pytest.param(shape, id=name, marks=() if name == list(SHAPES)[-1] else pytest.mark.slow)
    for name, shape in SHAPES.items()
]
FEW, COLUMNS = 6, {**EVERYTHING, "min_p": 0.05}
CLOSE = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}


@pytest.fixture(autouse=True)
def triton_rows(monkeypatch):
    """Use the kernels for every tile, with blocks smaller than a row of a tile."""
    monkeypatch.setattr(tiles, "row_work", lambda device, dtype: TritonRows)
    monkeypatch.setattr(kernels, "BLOCK", 64)


@pytest.fixture
def head():
    """A head in float32, the type of the kernels' tiles, with few rows: the interpreter is slow."""
    hidden, weight, targets, bias = make_head()
    return hidden[:FEW].float(), weight.float(), targets[:FEW], bias.float()


@pytest.fixture(name="half_operands")
def products_of_half_operands(monkeypatch):
    half_operands(monkeypatch)


def everything(hidden, weight, targets, chunk_bytes, **options):
    """All columns, and the gradients of a sum over the differentiable columns."""
    bias = options.pop("bias", None)
    free = leaves(hidden, weight, *([] if bias is None else [bias]))
    if bias is not None:
        options["bias"] = free[2]
    scores = score_tokens(*free[:2], targets, chunk_bytes=chunk_bytes, **COLUMNS, **options)
    (scores.logprobs.sum() + scores.entropy.square().sum()).backward()
    return {**vars(scores), **{f"gradient {i}": x.grad for i, x in enumerate(free)}}


@pytest.mark.parametrize("chunk_bytes", [SMALL_TILE, 1 << 30], ids=["tiles", "whole-rows"])
@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_kernels_equal_the_torch_rows(head, shape, chunk_bytes, monkeypatch):
    hidden, weight, targets, bias = head
    options = {**shape, **({"bias": bias} if shape else {})}
    found = everything(hidden, weight, targets, chunk_bytes, **options)
    monkeypatch.setattr(tiles, "row_work", lambda device, dtype: TorchRows)
    options |= {"bias": bias.double()} if shape else {}
    expected = everything(hidden.double(), weight.double(), targets, chunk_bytes, **options)
    for name, column in expected.items():
        torch.testing.assert_close(found[name], column, **CLOSE, msg=lambda m, n=name: f"{n}: {m}")


def test_extreme_logits_stay_exact():
    logits, targets = extreme_logits()
    inputs = logits.float(), torch.eye(300)
    scores, (*values, _), slopes = against_plain(inputs, targets, columns=COLUMNS)
    assert_close(values, rtol=1e-5, atol=1e-5)
    columns = [column for column in vars(scores).values() if column is not None]
    assert all(column.isfinite().all() for column in columns)
    assert all(found.isfinite().all() for found, _ in slopes)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("chunk_bytes", [SMALL_TILE, pytest.param(1 << 30, marks=pytest.mark.slow)])
def test_half_precision_products_give_float32_scores_and_rounded_gradients(
    half_operands, dtype, chunk_bytes
):
    check_half_precision(dtype, chunk_bytes, COLUMNS, temperature=0.9, scale=1.1)


def test_bfloat16_gradient_of_an_almost_certain_token_keeps_its_digits(half_operands):
    """1 − π must be computed before rounding; the difference of two rounded terms is 0."""
    hidden = torch.tensor([[8.0]], dtype=torch.bfloat16)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16)
    free = leaves(hidden, weight)
    score_tokens(*free, torch.tensor([0])).logprobs.sum().backward()
    other = torch.sigmoid(torch.tensor(-8.0))
    assert free[0].grad.item() == pytest.approx(other.item(), rel=0.01)
    assert free[1].grad[0].item() == pytest.approx(8 * other.item(), rel=0.01)


def test_float16_gradient_of_many_small_probabilities_is_not_lost(half_operands):
    """Each one is below the resolution of float16; together they are half of the gradient."""
    free = leaves(torch.zeros(1, 1).half(), torch.ones(4000, 1).half())
    with torch.no_grad():
        free[1][0] = 2
    scores = score_tokens(*free, torch.tensor([0]))
    (1e-3 * scores.logprobs).sum().backward()
    assert free[0].grad.item() == pytest.approx(1e-3, rel=0.01)


def test_float16_gradients_equal_those_of_the_rounded_inputs(half_operands, monkeypatch):
    """As under autocast: backward multiplies the rounded inputs of forward, in float32."""
    monkeypatch.setattr(token_scores, "_operand", lambda hidden, weight, dtype: torch.float16)
    torch.manual_seed(0)
    hidden, weight, targets = 4 * torch.randn(5, 64), torch.randn(301, 64), torch.arange(5)
    free = leaves(hidden, weight)
    score_tokens(*free, targets, entropy=True).logprobs.sum().backward()
    exact = leaves(hidden.half().double(), weight.half().double())
    plain(*exact, targets)[0].sum().backward()
    for found, expected in zip(free, exact, strict=True):
        torch.testing.assert_close(found.grad, expected.grad, **CLOSE)


@pytest.mark.parametrize("rows", [3, 64, 500])
def test_all_tiles_of_a_sweep_run_the_same_compiled_kernel(rows, monkeypatch):
    """The last tile is narrower, and another block size would be compiled again."""
    launched = []
    monkeypatch.setattr(kernels, "BLOCK", 4096)
    monkeypatch.setattr(
        kernels, "_launch", lambda kernel, *_, **named: launched.append((kernel, named["BLOCK"]))
    )
    free = leaves(torch.randn(rows, 2), torch.randn(5003, 2))
    score_tokens(*free, torch.arange(rows), chunk_bytes=1 << 14).logprobs.sum().backward()
    assert len(launched) > 2
    assert len(set(launched)) == 2  # forward and backward


def test_kernels_run_on_the_device_of_their_tile(monkeypatch, head):
    """Triton launches on the current device, which may not be the policy's device."""
    asked = []
    device_of = torch.cuda.device_of
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: (asked.append(x.shape), device_of(x))[1])
    score_tokens(head[0], head[1], head[2], chunk_bytes=SMALL_TILE)
    assert asked == [(FEW, 128), (FEW, 128), (FEW, 45)]


@pytest.mark.parametrize(("rows", "vocabulary"), [(0, 301), (1, 301), (2, 1), (2, 127), (2, 129)])
def test_kernels_handle_rows_and_vocabularies_of_any_size(rows, vocabulary):
    torch.manual_seed(0)
    inputs = torch.randn(rows, 4), torch.randn(vocabulary, 4)
    targets = torch.tensor([0, vocabulary - 1])[:rows]
    _, values, slopes = against_plain(inputs, targets, columns=EVERYTHING)
    assert_close([*values, *slopes], rtol=1e-5, atol=1e-5)


def test_kernels_use_the_stride_of_a_tile():
    """On a GPU the rows of a tile start at multiples of 16 elements, for any width."""
    torch.manual_seed(0)
    memory = torch.full((5, 24), torch.nan)
    tile = memory[:, :19]
    tile.copy_(torch.randn(5, 19))
    targets = torch.tensor([0, 18, -1, 19, 7])
    curve = Curve(0.5, torch.randn(19), None)
    gradient = RowGradient(*torch.randn(4, 5).unbind())
    results = []
    for kind in (TritonRows, TorchRows):
        work = kind(5, 19, torch.empty(0))
        sums = Sums.of(torch.empty(5), slope=True, square=True)
        work.fold(tile.clone(), curve, targets, sums)
        dz = work.differentiate(tile.clone(), curve, targets, gradient, torch.float32)
        results.append([*(x for x in vars(sums).values() if x is not None), dz])
        strided = memory.clone()[:, :19]
        work.differentiate(strided, curve, targets, gradient, torch.float32)
        torch.testing.assert_close(strided, dz)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(results[0][2][[2, 3]], torch.zeros(2))  # no target in this tile
