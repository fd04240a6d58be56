"""What backends share that work on blocks small enough for the processor's cache."""

from collections.abc import Iterable, Iterator
from itertools import islice
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from helixfold.ops.card import is_described

T = TypeVar("T")


def of_all_cores(of_one: int) -> int:
    """The size of a block, from what suits the cache of one core."""
    return of_one * torch.get_num_threads()


def parts(length: int, size: int) -> Iterator[slice]:
    """Slices of about equal length, none longer than `size` unless that is less than 1.

    Where a card is described only the longest, twice: while the second is computed, what the first left is still held,
    and all others would allocate the same again.
    """
    if is_described():
        count = -(-length // max(size, 1))
        yield from [slice(0, -(-length // max(count, 1)))] * min(count, 2)
    else:
        yield from every_part(length, size)


def every_part(length: int, size: int) -> Iterator[slice]:
    """The slices of `parts`, all of them in any case: for results that are held until the last one."""
    count = -(-length // max(size, 1))
    for index in range(count):
        yield slice(length * index // count, length * (index + 1) // count)


def steps(blocks: Iterable[T]) -> Iterator[T]:
    """The blocks that are computed one after the other: only two where a card is described, as in `parts`."""
    return islice(blocks, 2 if is_described() else None)


def rows_of_samples(x: Tensor, weight: Tensor, of_one: int) -> Iterator[tuple[int, slice]]:
    """Indices of blocks of `x` [b n k c] for which maps by `weight` take so many bytes for each core."""
    b, n, k, _ = x.shape
    for sample in steps(range(b)):
        for rows in parts(n, of_all_cores(of_one) // (len(weight) * k * weight.element_size())):
            yield sample, rows


class Scratch:
    """Memory for temporaries that every block uses again: fresh memory is slow, it is mapped page by page."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Contiguous and not initialised; overwrites what was given under this name, which has always one dtype."""
        size, kept = prod(shape), self._kept.get(name)
        if kept is None or len(kept) < size:
            kept = self._kept[name] = torch.empty(size, dtype=dtype, device=self._device)
        return kept[:size].view(shape)
