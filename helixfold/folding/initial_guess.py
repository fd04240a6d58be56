"""Start recycling from a structure: its atoms, in the order of a target's residues.

A model then refines, or judges, what it is given, instead of folding from the sequence alone (the initial guess of
Bennett et al. 2023, by which designed binders are screened; ColabFold has it under the same name).
"""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain
from data_pipeline.templates.pairwise_alignment import PairAlignment, align
from data_pipeline.templates.result import UnusableHitError

# Minimum sequence identity, relative to the shorter chain, for two chains to be the same protein.
_MIN_CHAIN_IDENTITY = 0.3


def guessed_positions(path: Path, features: TargetFeatures) -> Float[np.ndarray, "r 37 3"]:
    """Read a structure and return its atom positions for the residues of a target (Å); missing atoms are at the origin.

    Each chain of the target takes another chain of the structure: the one of the same name if they are similar, else
    the most similar one. Chains are similar if at least 30 % of the residues of the shorter one are equal. A residue
    without C-beta, such as a glycine aligned to an alanine, gets one at its C-alpha, because recycling reads C-beta.
    Raise `InputError` if the file cannot be read, or if a chain has no similar counterpart in it.
    """
    unused_chains = list(read_structure(path).chains)
    chains = [(ONLY_CHAIN, features.sequence)]
    if isinstance(features, ComplexFeatureSet):
        chains = list(zip(features.multimer.chain_names, features.chain_sequences, strict=True))
    positions = []
    for name, sequence in chains:
        chain, alignment = _counterpart(path, name, sequence, unused_chains)
        unused_chains.remove(chain)
        atoms = recycled_atoms(chain.atom_positions, chain.atom_mask)[alignment.partner]
        positions.append(np.where((alignment.partner >= 0)[:, None, None], atoms, np.float32(0)))
    return np.concatenate(positions)


def _counterpart(path: Path, name: str, sequence: str, chains: list[Chain]) -> tuple[Chain, PairAlignment]:
    """Return the structure's chain that matches a target's chain, and the target's alignment to it."""
    best: tuple[float, Chain, PairAlignment] | None = None
    # The chain of the target's name comes first, the others in file order.
    for chain in sorted(chains, key=lambda chain: chain.name != name):
        try:
            alignment = align("global", sequence, chain.sequence)
        except UnusableHitError as error:
            raise InputError.at(path, str(error), record=chain.name) from error
        identity = alignment.identities / max(1, min(len(sequence), len(chain.sequence)))
        if identity >= _MIN_CHAIN_IDENTITY and (best is None or identity > best[0]):
            best = identity, chain, alignment
        if chain.name == name and best is not None:
            break
    if best is None:
        raise InputError.at(path, f"no chain of the structure is similar to chain {printable(name)} of the target")
    return best[1], best[2]


def recycled_atoms(
    positions: Float[np.ndarray, "r 37 3"], mask: Float[np.ndarray, "r 37"]
) -> Float[np.ndarray, "r 37 3"]:
    """Return a float32 copy of atom positions as recycling reads them: a missing C-beta is put at C-alpha.

    Positions are in Å. `mask` is above 0 for atoms that are present; the positions of all others must be at the origin.
    Residues without C-alpha do not change.
    """
    alpha, beta = ATOM_ORDER["CA"], ATOM_ORDER["CB"]
    atoms = positions.copy()
    without_beta = (mask[:, beta] == 0) & (mask[:, alpha] > 0)
    atoms[without_beta, beta] = atoms[without_beta, alpha]
    return atoms.astype(np.float32)
