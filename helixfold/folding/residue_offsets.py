"""How far residues are apart along their chain, where that is not the difference of their numbers: rings, for one.

A ring's last residue is followed by its first one, so that the network, which reads offsets alone, sees no ends
(AfCycDesign; Rettie et al. 2023).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from data_pipeline.io.errors import InputError, did_you_mean, printable


def ring_offsets(length: int) -> Int[np.ndarray, "r r"]:
    """Return the offsets i - j on a ring of so many residues, each the shorter way round.

    Of two ways of the same length, the one that does not pass the ends counts.
    """
    numbers = np.arange(length)
    offset = numbers[:, None] - numbers
    around = offset - length * np.sign(offset)
    return np.where(np.abs(around) < np.abs(offset), around, offset)


def rings_of(chain_ids: Sequence[str], cyclic: Sequence[str] | None, target: str) -> tuple[int, ...]:
    """Return the places in `chain_ids` of the chains that are rings: none for None, and all without a name.

    Raise `InputError`, which names the target, if it lacks a chain.
    """
    if cyclic is None:
        return ()
    if missing := [name for name in cyclic if name not in chain_ids]:
        raise InputError(
            f"{printable(target)} has no chain {printable(missing[0])} to be cyclic; its chains are "
            f"{', '.join(chain_ids)}{did_you_mean(missing[0], chain_ids)}"
        )
    return tuple(place for place, name in enumerate(chain_ids) if not cyclic or name in cyclic)


def offsets_with_rings(
    residue_index: Int[np.ndarray, "r"], chain_index: Int[np.ndarray, "r"], rings: Sequence[int]
) -> Int[np.ndarray, "r r"]:
    """Return the differences of residue numbers, and within each chain that is a ring its offsets."""
    offsets = np.subtract.outer(residue_index, residue_index).astype(np.int64)
    for ring in rings:
        members = np.flatnonzero(chain_index == ring)
        offsets[np.ix_(members, members)] = ring_offsets(len(members))
    return offsets


def check_offsets(offsets: np.ndarray, residues: int) -> None:
    """Raise `InputError` if a matrix of offsets does not have a whole number for each pair of residues."""
    if offsets.shape != (residues, residues) or offsets.dtype.kind not in "iu":
        raise InputError(
            f"offsets must be whole numbers for all pairs of {residues} residues, got {offsets.dtype} of shape "
            f"{offsets.shape}"
        )
