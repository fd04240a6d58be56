"""Pair the alignment rows of the chains of a complex by species.

Proteins of one species are likely to interact, so paired rows show coevolution. AlphaFold-Multimer (Evans et al. 2022),
Suppl. Sec. 7.2.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from data_pipeline.features.msa import msa_features, single_sequence, unique_rows
from data_pipeline.parse.a3m import Alignment
from data_pipeline.residues import GAP

# A UniProt entry, "tr|A0A146SKV9|A0A146SKV9_FUNHE"; an isoform number may follow the accession, and a number the
# species.
_UNIPROT_ROW_NAME = re.compile(r"(?:tr|sp)\|[A-Za-z0-9]{6,10}(?:_\d)?\|[A-Za-z0-9]+_([A-Za-z0-9]{1,5})(?:_\d+)?")
# Species with more rows than this for a chain are left out, because pairing them would be a guess.
_MAX_ROWS = 600


def species_of(name: str) -> str:
    """Return UniProt's species code ("FUNHE") in the name of an alignment row, or "" if it has none.

    A residue range after a slash is ignored.
    """
    match = _UNIPROT_ROW_NAME.fullmatch(name.strip().partition("/")[0])
    return match.group(1) if match else ""


@dataclass(frozen=True, kw_only=True)
class PairedRows:
    """Rows of a chain that are already paired with the rows of the same index of the other chains.

    Residue types are the same as in `Features.msa`. Row 0 is the chain itself; a row consists of gaps if the chain is
    not part of the pair.
    """

    msa: Int[np.ndarray, "n r"]
    deletion_matrix: Int[np.ndarray, "n r"]


@dataclass(frozen=True, kw_only=True)
class PairingRows:
    """Alignment of a chain with rows to be paired by species with other chains; row 0 is the chain itself.

    Residue types are the same as in `Features.msa`. `species` has UniProt's species code of each row, "" for row 0 and
    for rows of unknown species.
    """

    msa: Int[np.ndarray, "n r"]
    deletion_matrix: Int[np.ndarray, "n r"]
    species: tuple[str, ...]

    @classmethod
    def of(cls, sequence: str, alignment: Alignment) -> "PairingRows":
        """Return the chain itself and the rows of its alignment, without duplicates, with species from their names."""
        parts = [single_sequence(sequence), alignment]
        names = [name for part in parts for name in part.names]
        unique = unique_rows(parts)
        msa, deletion_matrix = msa_features(parts)
        return cls(
            msa=msa, deletion_matrix=deletion_matrix, species=("", *(species_of(names[row]) for row in unique[1:]))
        )

    def select(self, rows: Int[np.ndarray, "p"]) -> PairedRows:
        """Return the rows with these indices; index -1 is a row of gaps."""
        gaps, no_deletions = np.full_like(self.msa[:1], GAP), np.zeros_like(self.deletion_matrix[:1])
        return PairedRows(
            msa=np.concatenate([self.msa, gaps])[rows],
            deletion_matrix=np.concatenate([self.deletion_matrix, no_deletions])[rows],
        )


def pair_rows(chains: Sequence[PairingRows]) -> Int[np.ndarray, "p c"]:
    """Return the indices of paired rows: pair p has one row index per chain, or -1 for chains without a row.

    Rows of a species that occurs in at least two chains are paired in the order of their similarity to the chain, up to
    the number of rows in the chain with the fewest. Species with more than 600 rows for a chain are left out. Pair 0 is
    the chains themselves. Pairs of all chains come next, and pairs of fewer chains later. Pairs of equally many chains
    are sorted by the absolute product of their row indices, so by their places in the alignments.
    """
    rows_by_species = [_by_species(chain) for chain in chains]
    by_count: dict[int, list[Int[np.ndarray, "c"]]] = defaultdict(list)
    by_count[len(chains)].append(np.zeros(len(chains), np.int64))
    for species in sorted(set().union(*rows_by_species)):
        own_rows = [rows.get(species) for rows in rows_by_species]
        counts = [len(rows) for rows in own_rows if rows is not None]
        if len(counts) < 2 or max(counts) > _MAX_ROWS:
            continue
        no_rows = np.full(min(counts), -1)
        by_count[len(counts)] += [
            *np.stack([no_rows if rows is None else rows[: min(counts)] for rows in own_rows], axis=1)
        ]
    ordered = []
    for count in sorted(by_count, reverse=True):
        rows = np.stack(by_count[count])
        # Products of many large indices overflow integers.
        index_products = np.abs(rows.astype(np.float64).prod(axis=1))
        ordered.append(rows[np.argsort(index_products, kind="stable")])
    return np.concatenate(ordered)


def _by_species(chain: PairingRows) -> dict[str, Int[np.ndarray, "m"]]:
    """Return the row indices of each known species, sorted by descending similarity to the chain."""
    similarity = (chain.msa == chain.msa[0]).sum(axis=1)
    rows: dict[str, list[int]] = defaultdict(list)
    for row, species in enumerate(chain.species):
        if species:
            rows[species].append(row)
    return {species: np.array(own)[np.argsort(-similarity[own], kind="stable")] for species, own in rows.items()}
