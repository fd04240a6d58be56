"""The hit of a template search: how one chain of a known structure aligns to the target."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, kw_only=True)
class TemplateHit:
    """One aligned segment of one template chain, which may have several hits.

    `query` and `hit_sequence` are the two aligned rows, of equal length: residues in upper case, gaps as '-'. In
    `hit_sequence`, residues that the target lacks are in lower case if the format marks them, and all residues are X if
    the format does not have them. `indices_query` and
    `indices_hit` give each column's residue index (from 0) in the whole target and in the whole hit chain, -1 for none.
    """

    index: int  # rank in the file, from 1
    name: str  # the whole description, beginning with the PDB id and chain: "2CRB_A nuclear receptor ..."
    aligned_columns: int
    sum_probs: float | None  # hhsearch's sum of posterior probabilities; hmmsearch has none
    query: str
    hit_sequence: str
    indices_query: Int[np.ndarray, "columns"]
    indices_hit: Int[np.ndarray, "columns"]
