"""Scores on a GPU: compiled Triton kernels and half-precision products."""

import pytest
import torch
from scoring_tools import EVERYTHING, SHAPES, SMALL_TILE, against_plain, assert_close

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
COLUMNS = {**EVERYTHING, "min_p": 0.05}


@pytest.mark.parametrize("chunk_bytes", [SMALL_TILE, 1 << 30], ids=["tiles", "whole-rows"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_scores_and_gradients_equal_those_of_all_logits(head, shape, chunk_bytes):
    hidden, weight, targets, bias = (x.cuda() for x in head)
    inputs = [x.float() for x in ((hidden, weight, bias) if shape else (hidden, weight))]
    settings = {"chunk_bytes": chunk_bytes, "columns": COLUMNS, **shape}
    _, values, slopes = against_plain(inputs, targets, **settings)
    assert_close([*values, *slopes], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("autocast", [False, True], ids=["half weights", "autocast"])
def test_half_precision_products_give_float32_scores(autocast):
    generator = torch.Generator("cuda").manual_seed(0)
    make = {"generator": generator, "device": "cuda"}
    hidden = torch.randn(300, 512, **make).bfloat16()
    weight = (torch.randn(32_003, 512, **make) / 8).bfloat16()
    targets = torch.randint(32_003, (300,), **make)
    inputs = (hidden.float(), weight.float()) if autocast else (hidden, weight)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        scores, values, slopes = against_plain(inputs, targets, columns=COLUMNS)
    assert scores.logprobs.dtype == torch.float32
    assert_close(values, rtol=1e-4, atol=1e-4)
    for found, expected in slopes:
        assert (found.double() - expected).norm() / expected.norm() < torch.finfo(
            torch.bfloat16
        ).eps
