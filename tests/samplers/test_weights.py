"""Checksums and comparison of sent and received weights: every fault has a message."""

from __future__ import annotations

import pytest
import torch

from rlobj.base.errors import RunError
from rlobj.samplers import Digest, Live, Received, Sent
from rlobj.samplers.weights import PARTS, columns, digest
from rlobj.training.rollouts.weight_checks import Held, compare, compare_live

LAYERS = {f"layers.{i}.weight": torch.randn(7, 5) for i in range(3)}


def arrived(weights, version=4):
    return Received(version, {name: digest(tensor) for name, tensor in weights.items()})


@pytest.fixture
def sent():
    sent = Sent(LAYERS.items())
    assert dict(sent).keys() == LAYERS.keys()
    return sent


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_the_digest_equals_the_formula(dtype):
    tensor = torch.tensor([1.5, -2.0, 0.0, 3.0]).to(dtype)
    size = tensor.element_size()
    bits = tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).tolist()
    sums = [sum(bits), sum(b * b for b in bits), sum(b * (2 * i + 1) for i, b in enumerate(bits))]
    assert digest(tensor) == Digest(4, *(each % 2**64 for each in sums))


def test_the_digest_detects_changed_and_exchanged_values_in_any_block():
    tensor = torch.randn(200_000)
    before = digest(tensor)
    changed, swapped = tensor.clone(), tensor.clone()
    changed[150_000] += 1e-6
    swapped[[3, 150_000]] = tensor[[150_000, 3]]
    assert len({before, digest(changed), digest(swapped), digest(tensor + 1e-7)}) == 4
    assert before == digest(tensor.reshape(400, 500).t().contiguous().t())


def test_digests_add_up_to_that_of_the_concatenation():
    parts = [torch.randn(rows, 300) for rows in (400, 7, 90)]
    assert digest(parts[0]) + digest(parts[1]) + digest(parts[2]) == digest(torch.cat(parts))
    turned = digest(parts[0].t())
    assert turned != digest(parts[0])
    assert turned.unordered == digest(parts[0]).unordered
    assert digest(torch.tensor([-0.0, 1.0])) == digest(torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("shape", [(3, 1), (5, 20), (5, 33), (2, 4, 50), (7,)])
def test_parts_in_a_row_have_every_column(shape):
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    values = torch.cat([columns(tensor, part).flatten() for part in range(9, 9 + PARTS)])
    assert values.unique().equal(tensor.flatten())


def test_a_tensor_that_was_replaced_on_its_way_gets_a_digest_of_its_own():
    arrived = Sent((n, t * 2 if "1" in n else t) for n, t in Sent(LAYERS.items()))
    assert dict(arrived).keys() == LAYERS.keys()
    for name, tensor in LAYERS.items():
        assert (arrived.digests[name] == digest(tensor)) == ("1" not in name)


def held(version, weights, live, whole=True):
    """What was sent, and an engine that fuses a and b and knows layer 3 by another name."""
    sent = {name: digest(tensor) for name, tensor in weights.items()}
    tensors = {name: (name, digest(tensor)) for name, tensor in live.items()}
    return Held(version, sent, Live(tensors, {"ab": ["a", "b"]}, whole))


def engine(weights):
    """The tensors of an engine that loads the weights rightly."""
    return {
        "layers.1.ab.w": torch.cat([weights["layers.1.a.w"], weights["layers.1.b.w"]]),
        "layers.2.c.w": weights["layers.2.c.w"].t(),
        "experts.3.w": torch.stack([weights["layers.3.d.w"], weights["layers.3.e.w"]]),
    }


NAMES = ("layers.1.a.w", "layers.1.b.w", "layers.2.c.w", "layers.3.d.w", "layers.3.e.w")
OLD, NEW = ({name: torch.randn(6, 5) for name in NAMES} for _ in range(2))
SOUND = engine(NEW)


def test_fused_transposed_and_unknown_tensors_of_a_sound_engine_are_accepted():
    compare_live(held(1, OLD, engine(OLD)), None)
    compare_live(held(2, NEW, SOUND), held(1, OLD, engine(OLD)))
    compare_live(held(2, NEW, {}), None)  # quantized


@pytest.mark.parametrize(
    ("live", "message"),
    [
        ({"layers.2.c.w": OLD["layers.2.c.w"]}, "layers.2.c.w: still has the values of version 1"),
        ({"layers.2.c.w": NEW["layers.2.c.w"] * 1.01}, "layers.2.c.w: has other values"),
        ({"layers.1.ab.w": SOUND["layers.1.ab.w"].flip(0)}, "has its values in another order"),
        ({"layers.2.c.w": SOUND["layers.1.ab.w"][:6]}, "layers.2.c.w: has other values"),
        ({"experts.3.w": engine(OLD)["experts.3.w"]}, "layer 3: did not change"),
    ],
)
def test_every_fault_of_live_weights_has_its_own_message(live, message):
    with pytest.raises(RunError, match=message):
        compare_live(held(2, NEW, {**SOUND, **live}), held(1, OLD, engine(OLD)))


def test_shards_must_change_where_the_trainer_changed_and_only_there():
    def shards(weights):
        return {name: tensor[:3] for name, tensor in engine(weights).items()}

    before = held(1, OLD, shards(OLD), whole=False)
    compare_live(held(2, NEW, shards(NEW), whole=False), before)
    with pytest.raises(RunError, match=r"layers.1.ab.w, layers.2.c.w: did not change"):
        compare_live(held(2, NEW, shards(OLD), whole=False), before)
    with pytest.raises(RunError, match=r"layers.2.c.w: changed without a reason"):
        compare_live(held(1, OLD, shards(NEW), whole=False), before)


def test_equal_weights_are_accepted(sent):
    compare(sent.digests, 4, arrived(LAYERS))


def test_the_digest_is_computed_after_the_cast():
    sent = Sent(LAYERS.items(), torch.bfloat16)
    halves = dict(sent)
    assert halves["layers.0.weight"].dtype == torch.bfloat16
    compare(sent.digests, 4, arrived(halves))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda w: arrived(w, version=3), "has version 3, the trainer has version 4"),
        (lambda w: arrived(w, version=-1), "has no weights"),
        (lambda w: arrived(dict(list(w.items())[1:])), "layers.0.weight: did not arrive"),
        (
            lambda w: arrived({**w, "layers.0.weight": w["layers.1.weight"]}),
            "layers.0.weight: arrived with other values",
        ),
        (lambda w: arrived({**w, "extra": w["layers.1.weight"]}), "extra: was never sent"),
        (lambda w: arrived({n: t - 1e-7 for n, t in w.items()}), "layers.2.weight: arrived with"),
    ],
)
def test_every_fault_has_its_own_message(sent, fault, message):
    with pytest.raises(RunError, match=message):
        compare(sent.digests, 4, fault(LAYERS))


def test_only_the_version_is_compared_for_a_shared_module(sent):
    compare({}, 4, Received(4, None))
    with pytest.raises(RunError, match="version 3"):
        compare({}, 4, Received(3, None))
