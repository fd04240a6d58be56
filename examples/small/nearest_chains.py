"""The known chain whose sequence is most like another's, and what it says of that one's structure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from chains import KnownChain
from ideal_chains import BACKBONE, Backbone

from data_pipeline.templates.pairwise_alignment import PairAlignment, align, local_score

Alignment = Literal["local", "whole"]


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """The nearest of many known chains."""

    chain: KnownChain
    local: PairAlignment  # the stretch that both share
    e_value: float  # how many of these chains would share as much by chance

    @property
    def identity(self) -> float:
        """Of the shared stretch's residues, from 0 to 1."""
        return self.local.identities / max(1, int((self.local.partner >= 0).sum()))


def nearest(sequence: str, known: Sequence[KnownChain]) -> Neighbour:
    """The known chain with the best local alignment (BLOSUM62, gaps 11 + n); the first of equals."""
    best = max(known, key=lambda chain: local_score(sequence, chain.sequence))
    local = align("local", sequence, best.sequence)
    return Neighbour(chain=best, local=local, e_value=local.e_value(sum(len(each.sequence) for each in known)))


def copied(sequence: str, neighbour: Neighbour, alignment: Alignment) -> Backbone:
    """The neighbour's backbone for the residues that are aligned, and nothing for all others."""
    found = neighbour.local
    if alignment == "whole":
        found = align("global", sequence, neighbour.chain.sequence)
    positions, mask = np.zeros((len(sequence), 37, 3), np.float32), np.zeros((len(sequence), 37), np.float32)
    aligned = np.flatnonzero(found.partner >= 0)
    rows, columns = aligned[:, None], np.array(BACKBONE)[None]
    source = found.partner[aligned][:, None]
    mask[rows, columns] = neighbour.chain.mask[source, columns]
    positions[rows, columns] = neighbour.chain.positions[source, columns] * mask[rows, columns][..., None]
    return Backbone(positions=positions, mask=mask)
