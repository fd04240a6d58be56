"""Pair the rows of the alignments of a complex's chains by species.

Rows of one species are likely to be of proteins that meet, and show how these changed together. AlphaFold-Multimer
(Evans et al. 2022), Suppl. Sec. 7.2.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from data_pipeline.features.msa import msa_features, rows_kept, single_sequence
from data_pipeline.parse.a3m import Alignment
from data_pipeline.residues import GAP

# A UniProt entry, "tr|A0A146SKV9|A0A146SKV9_FUNHE": an isoform's number may follow the accession, and a number the
# species.
_UNIPROT = re.compile(r"(?:tr|sp)\|[A-Za-z0-9]{6,10}(?:_\d)?\|[A-Za-z0-9]+_([A-Za-z0-9]{1,5})(?:_\d+)?")
# A species with more rows than this for a chain is left out: which of them pair would be a guess.
_MOST_ROWS = 600


def species_of(name: str) -> str:
    """Return UniProt's code of the species ("FUNHE") in the name of an alignment's row; "" if it has none.

    What follows a slash, the residues of the hit, does not matter.
    """
    match = _UNIPROT.fullmatch(name.strip().partition("/")[0])
    return match.group(1) if match else ""


@dataclass(frozen=True, kw_only=True)
class PairedRows:
    """Rows of a chain that were paired before: each stands beside the rows of the same index of the other chains.

    Row 0 is the chain itself; a row is of gaps alone where the chain has no part in a pair.
    """

    msa: Int[np.ndarray, "n r"]
    deletion_matrix: Int[np.ndarray, "n r"]


@dataclass(frozen=True, kw_only=True)
class PairingRows:
    """Alignment of a chain whose rows are paired with those of other chains; row 0 is the chain itself.

    Residue types are those of `Features.msa`. `species` is "" for row 0 and for rows of unknown species.
    """

    msa: Int[np.ndarray, "n r"]
    deletion_matrix: Int[np.ndarray, "n r"]
    species: tuple[str, ...]

    @classmethod
    def of(cls, sequence: str, alignment: Alignment) -> "PairingRows":
        """Return the rows of an alignment of a chain, without duplicates, with the species in their names."""
        parts = [single_sequence(sequence), alignment]
        names = [name for part in parts for name in part.names]
        kept = rows_kept(parts)
        msa, deletion_matrix = msa_features(parts)
        return cls(
            msa=msa, deletion_matrix=deletion_matrix, species=("", *(species_of(names[row]) for row in kept[1:]))
        )

    def chosen(self, rows: Int[np.ndarray, "p"]) -> PairedRows:
        """Return the rows of these indices; index -1 is a row of gaps."""
        gaps, none = np.full_like(self.msa[:1], GAP), np.zeros_like(self.deletion_matrix[:1])
        return PairedRows(
            msa=np.concatenate([self.msa, gaps])[rows],
            deletion_matrix=np.concatenate([self.deletion_matrix, none])[rows],
        )


def pair_rows(chains: Sequence[PairingRows]) -> Int[np.ndarray, "p c"]:
    """Return which rows of the chains stand side by side: row p has for every chain the index of a row, or -1 for none.

    Rows of a species that two chains or more have are paired in the order of their similarity to the chain, as many as
    the chain with the fewest has. Row 0 is the chains themselves; rows that all chains have come next, and among those
    of as many chains the first ones in the alignments.
    """
    rows_by_species = [_by_species(chain) for chain in chains]
    by_count: dict[int, list[Int[np.ndarray, "c"]]] = defaultdict(list)
    by_count[len(chains)].append(np.zeros(len(chains), np.int64))
    for species in sorted(set().union(*rows_by_species)):
        found = [rows.get(species) for rows in rows_by_species]
        counts = [len(rows) for rows in found if rows is not None]
        if len(counts) < 2 or max(counts) > _MOST_ROWS:
            continue
        none = np.full(min(counts), -1)
        by_count[len(counts)] += [*np.stack([none if rows is None else rows[: min(counts)] for rows in found], axis=1)]
    ordered = []
    for count in sorted(by_count, reverse=True):
        rows = np.stack(by_count[count])
        # Products of many large indices do not fit into integers.
        places = np.abs(rows.astype(np.float64).prod(axis=1))
        ordered.append(rows[np.argsort(places, kind="stable")])
    return np.concatenate(ordered)


def _by_species(chain: PairingRows) -> dict[str, Int[np.ndarray, "m"]]:
    """Return the rows of each known species, the most similar to the chain first."""
    similarity = (chain.msa == chain.msa[0]).sum(axis=1)
    rows: dict[str, list[int]] = defaultdict(list)
    for row, species in enumerate(chain.species):
        if species:
            rows[species].append(row)
    return {species: np.array(own)[np.argsort(-similarity[own], kind="stable")] for species, own in rows.items()}
