"""Micro-batches, padding and packing."""

from array import array
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlobj.base.errors import BatchError
from rlobj.scoring import micro_batches, pack_sequences, pad_sequences


@pytest.mark.parametrize("collate", [pad_sequences, pack_sequences])
def test_a_response_without_a_prompt_and_ids_that_are_no_integers_are_refused(collate):
    with pytest.raises(BatchError, match="sequence 1 has an empty prompt"):
        collate([([1], [2]), ([], [3])])
    with pytest.raises(TypeError, match="float64"):
        collate([([1], [2.5])])


def test_padded_sequences_equal_values_by_hand():
    input_ids, attention_mask, response_mask = pad_sequences([([1, 2], [3]), ([4], []), ([], [])])
    assert input_ids.tolist() == [[1, 2, 3], [4, 0, 0], [0, 0, 0]]
    assert attention_mask.tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert response_mask.tolist() == [[False, False, True], [False] * 3, [False] * 3]


def test_packed_sequences_equal_values_by_hand():
    input_ids, attention_mask, response_mask, position_ids = pack_sequences(
        [([1, 2], [3]), ([], []), ([4], []), ([5], [6, 7])]
    )
    assert attention_mask is None
    assert input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert position_ids.tolist() == [[0, 1, 2, 0, 0, 1, 2]]
    assert response_mask.tolist() == [[False, False, True, False, False, True, True]]
    input_ids, _, response_mask, position_ids = pack_sequences([])
    assert (input_ids.shape, position_ids.shape) == ((1, 1), (1, 1))
    assert not response_mask.any()


@pytest.mark.parametrize(
    "kind",
    [list, tuple, partial(array, "i"), partial(array, "q"), np.array, torch.tensor],
    ids=["list", "tuple", "int array", "long array", "numpy", "torch"],
)
@pytest.mark.parametrize("collate", [pad_sequences, pack_sequences])
def test_token_ids_can_be_any_sequence_of_integers(collate, kind):
    pairs = [([7, 2**31 - 1, 0], [5]), ([151_935], [])]
    expected = collate(pairs)[0]
    assert expected.dtype == torch.long
    found = collate([(kind(prompt), kind(response)) for prompt, response in pairs])[0]
    assert found.dtype == torch.long
    assert torch.equal(found, expected)


# Micro-batches


@pytest.mark.parametrize("packed", [False, True])
@given(lengths=st.lists(st.integers(0, 60), max_size=40), budget=st.integers(1, 200))
def test_micro_batches_have_every_index_once_within_the_budget(packed, lengths, budget):
    batches = micro_batches(lengths, budget, packed=packed)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[i] for i in batch]
        assert len(batch) == 1 or (sum(sizes) if packed else len(batch) * max(sizes)) <= budget
    longest = [max(lengths[i] for i in batch) for batch in batches]
    assert not packed or longest == sorted(longest, reverse=True)
    assert batches == micro_batches(list(lengths), budget, packed=packed)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 99), min_size=1, max_size=6),
    scale=st.sampled_from([1, 8, 40]),
    budget=st.integers(5, 9000),
)
def test_no_other_padded_grouping_costs_less(lengths, scale, budget):
    def fits(batch):
        return len(batch) == 1 or len(batch) * max(batch) <= budget

    def partitions(items):
        if not items:
            yield []
            return
        first, rest = items[0], items[1:]
        for smaller in partitions(rest):
            yield [[first], *smaller]
            for place, batch in enumerate(smaller):
                yield [*smaller[:place], [first, *batch], *smaller[place + 1 :]]

    def cost(grouping):
        return sum(len(batch) * max(batch) + min(256, budget / 16) for batch in grouping)

    lengths = [length * scale for length in lengths]
    found = [[lengths[i] for i in batch] for batch in micro_batches(lengths, budget)]
    assert all(map(fits, found))
    least = min(cost(each) for each in partitions(lengths) if all(map(fits, each)))
    assert cost(found) == pytest.approx(least)


def test_packed_micro_batches_of_many_lengths_are_nearly_full():
    torch.manual_seed(0)
    lengths = (400 * torch.exp(0.8 * torch.randn(512))).long().clamp(8, 8192).tolist()
    batches = micro_batches(lengths, 16384, packed=True)
    assert sum(lengths) / (len(batches) * 16384) > 0.97
