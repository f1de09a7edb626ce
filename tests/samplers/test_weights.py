"""Checksums and comparison of sent and received weights: every fault has a message."""

from __future__ import annotations

import pytest
import torch

from rlobj.base.errors import RunError
from rlobj.samplers import Digest, Live, Received, Sent
from rlobj.samplers.syncing import Synchronizer, compare, compare_live
from rlobj.samplers.weights import PARTS, columns, digest

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


@pytest.mark.parametrize("change", [lambda x: x * 2, lambda x: x.add_(1)], ids=["new", "in place"])
def test_a_tensor_that_was_changed_on_its_way_gets_a_digest_of_its_own(change):
    sent = Sent((name, tensor.clone()) for name, tensor in LAYERS.items())
    arrived = Sent((name, change(tensor) if "1" in name else tensor) for name, tensor in sent)
    assert dict(arrived).keys() == LAYERS.keys()
    for name in LAYERS:
        assert (arrived.digests[name] == sent.digests[name]) == ("1" not in name)


def checked(weights, live, whole=True, ordered=()):
    """Compare what was sent with an engine that fuses a and b, and knows layer 3 by other names."""
    sent = {name: digest(tensor) for name, tensor in weights.items()}
    tensors = {name: (name, digest(tensor)) for name, tensor in live.items()}
    return compare_live(sent, Live(tensors, {"ab": ["a", "b"]}, whole), 2, ordered)


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
    assert checked(NEW, SOUND) == {"layers.1.ab.w"}
    assert checked(NEW, {}) == set()  # quantized


@pytest.mark.parametrize(
    ("live", "message"),
    [
        ({"layers.2.c.w": OLD["layers.2.c.w"]}, "layers.2.c.w: has other values"),
        ({"layers.2.c.w": NEW["layers.2.c.w"] * 1.01}, "layers.2.c.w: has other values"),
        ({"layers.1.ab.w": SOUND["layers.1.ab.w"].flip(0)}, "has its values in another order"),
        ({"layers.2.c.w": SOUND["layers.1.ab.w"][:6]}, "layers.2.c.w: has other values"),
    ],
)
def test_every_fault_of_live_weights_has_its_own_message(live, message):
    with pytest.raises(RunError, match=message):
        checked(NEW, {**SOUND, **live})


def test_a_tensor_that_kept_its_order_before_keeps_it():
    with pytest.raises(RunError, match=r"layers.2.c.w: has its values in another order"):
        checked(NEW, SOUND, ordered=["layers.2.c.w"])


def test_shards_have_the_values_together_and_padded_tensors_are_not_compared():
    split = {**SOUND, "layers.2.c.w": NEW["layers.2.c.w"][[3, 4, 5, 0, 1, 2]]}
    checked(NEW, {**split, "layers.1.ab.w": torch.zeros(14, 5)}, whole=False)
    with pytest.raises(
        RunError, match=r"2 tensors, such as layers.1.ab.w, layers.2.c.w: has other"
    ):
        checked(NEW, engine(OLD), whole=False)


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
        (lambda w: arrived(w, version=3), "version 3, the trainer 4"),
        (lambda w: arrived(w, version=-1), "version -1"),
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


# Syncs.


class Engine:
    """Computes with a copy of what it gets, with 1 added to some values of the next copies."""

    dtype, same_tensors = None, False

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
    monkeypatch.setattr("rlobj.samplers.syncing._LARGE", large)
    names = {"layers.0.w": (50, 100), "layers.0.b": (7,)}
    synchronizer = Synchronizer(engine, lambda: ((n, torch.randn(s)) for n, s in names.items()))
    for version in versions:
        synchronizer.push(version)
        yield version
        synchronizer.check()


def test_all_is_read_first_and_when_a_version_is_sent_again_and_else_another_part(monkeypatch):
    list(steps(engine := Engine(), [0, 1, 2, 2, 3], monkeypatch))
    assert engine.asked == [None, 1, 1, 2, 2, 3, 3, None, 4, 5, 5]


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

    dtype, same_tensors = None, False

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


@pytest.mark.parametrize(
    ("exact", "words"),
    [(True, "as received and as the engine computes with"), (False, "as received")],
)
def test_the_checks_that_an_engine_allows_are_said(exact, words):
    synchronizer = Synchronizer(Engine(), lambda: [("w", torch.ones(2))], exact=exact)
    synchronizer.push(0)
    assert synchronizer.checks == f"weights compared {words}"
