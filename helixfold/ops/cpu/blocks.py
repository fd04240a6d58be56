"""What backends share that work on blocks small enough for the processor's cache."""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor


def of_all_cores(of_one: int) -> int:
    """The size of a block, from what suits the cache of one core."""
    return of_one * torch.get_num_threads()


def parts(length: int, size: int) -> Iterator[slice]:
    """Slices of about equal length, none longer than `size` unless that is less than 1."""
    count = -(-length // max(size, 1))
    for index in range(count):
        yield slice(length * index // count, length * (index + 1) // count)


def rows_of_samples(x: Tensor, weight: Tensor, of_one: int) -> Iterator[tuple[int, slice]]:
    """Indices of blocks of `x` [b n k c] for which maps by `weight` take so many bytes for each core."""
    b, n, k, _ = x.shape
    for sample in range(b):
        for rows in parts(n, of_all_cores(of_one) // (len(weight) * k * x.element_size())):
            yield sample, rows


class Scratch:
    """Memory for temporaries that every block uses again: fresh memory is slow, it is mapped page by page."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Contiguous and not initialised; overwrites what was given under this name, which has always one dtype."""
        size, kept = prod(shape), self._kept.get(name)
        if kept is None or len(kept) < size:
            kept = self._kept[name] = torch.empty(size, dtype=dtype)
        return kept[:size].view(shape)
