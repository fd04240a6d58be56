"""Sequence offsets between residues that differ from the difference of their numbers, as in cyclic chains.

The network reads positions along the chain only as offsets between residues. If the last residue of a cyclic chain is
next to the first one, the network sees a chain without ends (AfCycDesign; Rettie et al. 2023).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from data_pipeline.io.errors import InputError, did_you_mean, printable


def ring_offsets(length: int) -> Int[np.ndarray, "r r"]:
    """Return the offsets i - j in a cyclic chain of `length` residues, along the shorter way around the ring.

    If both ways are equally long, the offset along the chain is used.
    """
    indices = np.arange(length)
    offset = indices[:, None] - indices
    around = offset - length * np.sign(offset)
    return np.where(np.abs(around) < np.abs(offset), around, offset)


def rings_of(chain_ids: Sequence[str], cyclic: Sequence[str] | None, target: str) -> tuple[int, ...]:
    """Return the indices in `chain_ids` of the cyclic chains.

    `cyclic` has their names; an empty sequence means all chains, and None means none. Raise `InputError`, which names
    the `target`, if it does not have one of the chains.
    """
    if cyclic is None:
        return ()
    if missing := [name for name in cyclic if name not in chain_ids]:
        raise InputError(
            f"cyclic chain {printable(missing[0])} is not in {printable(target)}; its chains are "
            f"{', '.join(chain_ids)}{did_you_mean(missing[0], chain_ids)}"
        )
    return tuple(index for index, name in enumerate(chain_ids) if not cyclic or name in cyclic)


def offsets_with_rings(
    residue_index: Int[np.ndarray, "r"], chain_index: Int[np.ndarray, "r"], rings: Sequence[int]
) -> Int[np.ndarray, "r r"]:
    """Return the offsets of all residue pairs: differences of residue numbers, or ring offsets within cyclic chains.

    `rings` are the indices of the cyclic chains.
    """
    offsets = np.subtract.outer(residue_index, residue_index).astype(np.int64)
    for ring in rings:
        members = np.flatnonzero(chain_index == ring)
        offsets[np.ix_(members, members)] = ring_offsets(len(members))
    return offsets


def check_offsets(offsets: np.ndarray, residues: int) -> None:
    """Raise `InputError` unless `offsets` is an integer matrix with an entry for each pair of residues."""
    if offsets.shape != (residues, residues) or offsets.dtype.kind not in "iu":
        raise InputError(
            f"offsets must be integers of shape ({residues}, {residues}), got {offsets.dtype} of shape {offsets.shape}"
        )
