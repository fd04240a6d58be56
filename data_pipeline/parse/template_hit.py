"""A template hit: how one chain of a known structure aligns to the target, whatever program found it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, kw_only=True)
class TemplateHit:
    """One aligned stretch of one template; the same structure may be hit several times.

    `query` and `hit_sequence` are the two aligned rows, of equal length: residues in upper case, gaps as '-', and in
    `hit_sequence` residues that the target lacks in lower case where the format tells them. `indices_query` and
    `indices_hit` give for every column the residue's index (from 0) in the whole target and in the whole sequence of
    the hit chain, -1 where there is none.
    """

    index: int  # rank in the file, from 1
    name: str  # the whole description, beginning with the PDB id and chain: "2CRB_A nuclear receptor ..."
    aligned_columns: int
    sum_probs: float | None  # hhsearch's sum of posterior probabilities; hmmsearch has none
    query: str
    hit_sequence: str
    indices_query: Int[np.ndarray, "columns"]
    indices_hit: Int[np.ndarray, "columns"]
