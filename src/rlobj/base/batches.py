"""Batches of sequences of similar length."""

from collections.abc import Iterator, Sequence


def by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """The indices of sequences, from the shortest to the longest, in batches.

    Args:
        lengths: of the sequences, in tokens.
        budget: the largest number of tokens of a batch, with padding; one sequence may have more.

    Example:
        >>> list(by_length([3, 1, 9, 2], budget=6))
        [[1, 3], [0], [2]]
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
