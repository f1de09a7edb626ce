"""Checksums and comparison of sent and received weights: every fault has a message."""

from __future__ import annotations

import pytest
import torch

from rlobj.base.errors import RunError
from rlobj.samplers import Received, Sent, checksum, compare

LAYERS = {f"layers.{i}.weight": torch.randn(7, 5) for i in range(3)}


def arrived(weights, version=4):
    return Received(version, {name: checksum(tensor) for name, tensor in weights.items()})


@pytest.fixture
def sent():
    sent = Sent(LAYERS.items())
    assert dict(sent).keys() == LAYERS.keys()
    return sent


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_the_checksum_equals_the_formula(dtype):
    tensor = torch.tensor([1.5, -2.0, 0.0]).to(dtype)
    size = tensor.element_size()
    bits = tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).tolist()
    total = sum((b + 1) * (2 * i + 1) for i, b in enumerate(bits)) % 2**64
    assert checksum(tensor) % 2**64 == total


def test_the_checksum_detects_changed_and_exchanged_values_in_any_block():
    tensor = torch.randn(200_000)
    before = checksum(tensor)
    changed, swapped = tensor.clone(), tensor.clone()
    changed[150_000] += 1e-6
    swapped[[3, 150_000]] = tensor[[150_000, 3]]
    assert len({before, checksum(changed), checksum(swapped), checksum(tensor + 1e-7)}) == 4
    assert before == checksum(tensor.reshape(400, 500).t().contiguous().t())


def test_equal_weights_are_accepted(sent):
    compare(sent.checksums, 4, arrived(LAYERS))


def test_the_checksum_is_computed_after_the_cast():
    sent = Sent(LAYERS.items(), torch.bfloat16)
    halves = dict(sent)
    assert halves["layers.0.weight"].dtype == torch.bfloat16
    compare(sent.checksums, 4, arrived(halves))


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
        compare(sent.checksums, 4, fault(LAYERS))


def test_only_the_version_is_compared_for_a_shared_module(sent):
    compare({}, 4, Received(4, None))
    with pytest.raises(RunError, match="version 3"):
        compare({}, 4, Received(3, None))
