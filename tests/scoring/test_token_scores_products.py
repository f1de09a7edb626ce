"""The matrix products that score_tokens computes and those that it skips."""

import pytest
import torch
from scoring_tools import ROWS, SMALL_TILE, VOCABULARY, WIDTH, leaves, plain
from torch.utils._python_dispatch import TorchDispatchMode

from rlobj.scoring import score_tokens

FACTORS = {"mm": 0, "addmm": 1, "addmm_": 1}  # where the arguments of a product begin
OTHERS = {"bmm", "baddbmm", "baddbmm_", "mv", "addmv", "addmv_", "dot", "addr", "addr_"}


class Products(TorchDispatchMode):
    """Counts the operations of all matrix products inside, and keeps their results."""

    def __init__(self):
        super().__init__()
        self.operations = 0
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        assert name not in OTHERS
        if name in FACTORS:
            left, right = args[FACTORS[name] :][:2]
            self.operations += 2 * left.shape[0] * left.shape[1] * right.shape[1]
            self.made.append(result)
        return result


def work(rows=ROWS, width=WIDTH):
    """Operations of one product of all rows with the whole vocabulary."""
    return 2 * rows * width * VOCABULARY


@pytest.mark.parametrize("chunk_bytes", [SMALL_TILE, None], ids=["tiles", "one-tile"])
def test_log_probs_entropy_collision_and_sensitivity_share_one_product(head, chunk_bytes):
    with Products() as products:
        score_tokens(
            *head[:3], entropy=True, collision=True, sensitivity=True, chunk_bytes=chunk_bytes
        )
    assert products.operations == work()


def test_the_proxy_computes_only_the_tiles_above_its_filter_again(head):
    weight, targets = head[1:3]
    for peak, again in ((1.0, 1.0), (1e3, 128 / VOCABULARY)):
        towards = weight[:1].expand(ROWS, -1)  # the largest logit of each row is in the first tile
        with Products() as products:
            score_tokens(peak * towards, weight, targets, min_p=1e-9, chunk_bytes=SMALL_TILE)
        assert products.operations == pytest.approx((1 + again) * work())


WANTED = {"all": (True, True, 3), "frozen head": (True, False, 2), "frozen trunk": (False, True, 2)}


@pytest.mark.parametrize(("trunk", "weight", "products"), WANTED.values(), ids=WANTED)
def test_backward_computes_no_product_for_frozen_inputs(head, trunk, weight, products):
    hidden, embeddings = leaves(*head[:2])
    hidden.requires_grad_(trunk)
    embeddings.requires_grad_(weight)
    scores = score_tokens(hidden, embeddings, head[2], entropy=True, chunk_bytes=SMALL_TILE)
    with Products() as made:
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
    assert made.operations == products * work()
    every = leaves(*head[:2])
    scores = score_tokens(*every, head[2], entropy=True)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    for found, expected in zip((hidden, embeddings), every, strict=True):
        assert found.requires_grad == (found.grad is not None)
        if found.requires_grad:
            torch.testing.assert_close(found.grad, expected.grad)
    largest = max(len(result) for result in made.made)
    assert (largest >= 128) == weight  # a tile of W's gradient has as many rows as a tile columns


@pytest.mark.parametrize("active", [[], [3], [2, 5, 11]])
@pytest.mark.parametrize("through", ["logprobs", "entropy"])
def test_rows_without_gradient_need_no_backward_products(head, active, through):
    free, expected = leaves(head[0], head[1], head[3]), leaves(head[0], head[1], head[3])
    incoming = torch.zeros(ROWS, dtype=torch.float64)
    incoming[active] = 1.5
    options = {"entropy": True, "chunk_bytes": SMALL_TILE}
    scores = score_tokens(*free[:2], head[2], bias=free[2], **options)
    with Products() as made:
        getattr(scores, through).backward(incoming)
    assert made.operations == 3 * work(rows=len(active))
    columns = plain(*expected[:2], head[2], bias=expected[2])
    columns[through == "entropy"].backward(incoming)
    for found, exact in zip(free, expected, strict=True):
        torch.testing.assert_close(found.grad, exact.grad)


def test_a_dropped_row_with_nan_has_no_effect(head):
    free, expected = leaves(*head[:2]), leaves(*head[:2])
    with torch.no_grad():
        free[0][4, 0], free[0][5, 1], free[0][6, 2] = torch.nan, torch.inf, -torch.inf
    kept = torch.ones(ROWS, dtype=torch.bool)
    kept[4:7] = False
    scores = score_tokens(*free, head[2], entropy=True, chunk_bytes=SMALL_TILE)
    others = score_tokens(expected[0][kept], expected[1], head[2][kept], entropy=True)
    for column in (scores.logprobs, scores.entropy):
        assert column.isfinite().equal(kept)
    (scores.logprobs[kept].sum() + scores.entropy[kept].sum()).backward()
    (others.logprobs.sum() + others.entropy.sum()).backward()
    for found, exact in zip(free, expected, strict=True):
        torch.testing.assert_close(found.grad, exact.grad)
