"""Compare two parameter files of one model, and name arrays and layers that differ or are exchanged."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from helixfold.verification.checks import Check
from helixfold.weights.tensor_file import digest_of

LISTED = 8
_LAYER = re.compile(r"(?P<stack>.+?)\.blocks\.(?P<layer>\d+)\.(?P<rest>.+)")


def compare_parameters(state: Mapping[str, Tensor], other: Mapping[str, Tensor], other_name: str) -> Check:
    """Return whether two state dicts have the same bits; if not, name the arrays that differ, and exchanged layers."""
    differing = [name for name in state if not same_bits(state[name], other[name])]
    if not differing:
        return Check(name="against a file", holds=True, found=f"every bit is that of {other_name}")
    exchanged, described = exchanged_layers(state, other, differing)
    lines = [f"layers {one} and {two} of {stack} are exchanged" for stack, one, two in exchanged]
    lines += [difference(name, state, other) for name in differing if name not in described]
    more = [f"and {len(lines) - LISTED} more differ"] if len(lines) > LISTED else []
    return Check(name="against a file", holds=False, found="; ".join([*lines[:LISTED], *more]) + f" (as {other_name})")


def exchanged_layers(
    state: Mapping[str, Tensor], other: Mapping[str, Tensor], differing: list[str]
) -> tuple[list[tuple[str, int, int]], set[str]]:
    """Return the pairs of layers of a stack that are exchanged as a whole, and the names of their tensors."""
    moved = Counter[tuple[str, int, int]]()
    size = Counter(match["stack"] + match["layer"] for name in differing if (match := _LAYER.fullmatch(name)))
    owners = {(digest_of({"": tensor}), _pattern(name)): name for name, tensor in other.items() if _LAYER.match(name)}
    places: dict[tuple[str, int, int], set[str]] = {}
    for name in differing:
        here = _LAYER.fullmatch(name)
        there = _LAYER.fullmatch(owners.get((digest_of({"": state[name]}), _pattern(name)), ""))
        if here and there and here["stack"] == there["stack"]:
            one, two = sorted((int(here["layer"]), int(there["layer"])))
            moved[here["stack"], one, two] += 1
            places.setdefault((here["stack"], one, two), set()).add(name)
    found = [key for key, count in moved.items() if count == size[f"{key[0]}{key[1]}"] + size[f"{key[0]}{key[2]}"]]
    return found, set().union(*(places[key] for key in found)) if found else set()


def difference(name: str, state: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str:
    """Describe how a tensor differs: it is another one of the file, one bit is flipped, or how many values differ."""
    twin = next((key for key in other if key != name and same_bits(state[name], other[key])), None)
    if twin is not None:
        return f"{name} holds what {twin} should"
    here, there = state[name].flatten().numpy(), other[name].flatten().numpy()
    bits = here.view(np.uint32) ^ there.view(np.uint32)
    places = np.flatnonzero(bits)
    changed = int(bits[places[0]])
    if len(places) == 1 and changed.bit_count() == 1:
        place = [int(index) for index in np.unravel_index(places[0], tuple(state[name].shape))]
        values = f"{here[places[0]]:.6g} instead of {there[places[0]]:.6g}"
        return f"{name} has one bit flipped (bit {changed.bit_length() - 1} of the value at {place}: {values})"
    with np.errstate(invalid="ignore", over="ignore"):
        largest = np.abs(here[places].astype(np.float64) - there[places]).max()
    return f"{name} differs in {len(places):,} of {here.size:,} values, by at most {largest:.3g}"


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two float32 tensors have the same shape and bits; unlike `torch.equal`, NaN equals itself."""
    return one.shape == other.shape and torch.equal(one.view(torch.int32), other.view(torch.int32))


def pairs_by_distance(layers: int) -> Iterator[tuple[int, int]]:
    """Yield all pairs of layers of a stack, neighbours first."""
    for distance in range(1, layers):
        for first in range(layers - distance):
            yield first, first + distance


def _pattern(name: str) -> str:
    match = _LAYER.fullmatch(name)
    return name if match is None else f"{match['stack']}.blocks.*.{match['rest']}"
