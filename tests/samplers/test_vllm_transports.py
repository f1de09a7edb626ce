"""The two transports of weights: broadcast over a process group, and files."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from rlobj.base.files import free_port
from rlobj.samplers.vllm import client
from rlobj.samplers.vllm.extension import WeightExtension, WeightGroup


def some_weights() -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        ("z.first", torch.randn(3, 5, generator=generator)),
        ("a.half", torch.randn(7, generator=generator).bfloat16()),
        ("empty", torch.zeros(0, 4)),
        ("m.transposed", torch.randn(4, 6, generator=generator).T),
        ("scalar", torch.tensor(3.0)),
    ]


def same(one: list[tuple[str, Tensor]], other: list[tuple[str, Tensor]]) -> bool:
    return len(one) == len(other) and all(
        a == b and x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)
        for (a, x), (b, y) in zip(one, other, strict=True)
    )


def test_a_broadcast_carries_names_dtypes_shapes_and_values():
    port, device = free_port(), torch.device("cpu")
    arrived: list[tuple[str, Tensor]] = []

    def worker() -> None:
        group = WeightGroup("127.0.0.1", port, 1, 2, device, 20)
        for _ in range(2):
            arrived.extend(group.receive())

    thread = threading.Thread(target=worker)
    thread.start()
    group = WeightGroup("127.0.0.1", port, 0, 2, device, 20)
    group.send(some_weights())
    group.send([("again", torch.ones(2))])
    thread.join()
    assert same(arrived, [*some_weights(), ("again", torch.ones(2))])


def test_files_carry_names_dtypes_shapes_and_values_in_order(tmp_path):
    from rlobj.samplers.vllm.extension import _stored

    client._store(some_weights(), tmp_path)
    assert same(list(_stored(tmp_path)), list(some_weights()))


def test_receiving_without_a_group_answers_with_the_error():
    answer = WeightExtension().rlobj_receive(1)
    assert answer is not None
    assert "must call rlobj_open first" in answer["error"]
