"""Simulated homologs: sequences sampled for a known structure by a statistical model, to train reading alignments.

A sequence s for the structure of a chain has the energy

    E(s) = - sum over residues of log P(s_i | the chain's residue, after a time)     (BLOSUM62)
           - strength * sum over contacts of J(s_i, s_j)

Two residues at least 4 apart in the sequence are in contact if their C-betas are within 8 Å. J is the log odds of two
types being in contact in the training chains, relative to their frequencies. Gibbs sampling starts from the chain
itself, so that rows differ from it like homologs and residues in contact change together. Rows have no insertions; ends
and stretches are missing, as in real alignments. Models that are trained on these rows are tested on natural sequences
only.
"""

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from Bio.Align import substitution_matrices
from jaxtyping import Bool, Float, Int
from library import LibraryChain
from tqdm import tqdm

from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.io.files import atomic_write
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER, RESTYPES, UNKNOWN
from data_pipeline.sampling.templates import pseudo_beta
from data_pipeline.structure import Chain

SIMULATED_FILE = "simulated.a3m"
CONTACT = 8.0  # Angstrom between C-betas
MIN_SEPARATION = 4  # residues along the chain
STRENGTH = 3.0  # of contacts; statistical potentials are weaker than the interactions within one protein
SWEEPS = 6
_TIMES = (0.3, 2.0)  # range of the powers of the substitution probabilities, one for each row
_PSEUDO_COUNT = 20.0
_MISSING_END, _MISSING_STRETCH = 0.3, 0.3  # probabilities that a row lacks an end, or a stretch inside
_TYPES = len(RESTYPES)


def structure_of(data: Path, chain: LibraryChain) -> Chain:
    """Return a chain of the library with its atoms."""
    return next(each for each in read_structure(data / chain.file).chains if each.name == chain.chain)


def contacts_of(chain: Chain) -> Int[np.ndarray, "n 2"]:
    """Return all pairs of residues in contact, each pair once, the earlier residue first."""
    positions, mask = pseudo_beta(chain.aatype, chain.atom_positions, chain.atom_mask)
    distances = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    place = np.arange(len(mask))
    is_known = (mask > 0) & (chain.atom_mask[:, ATOM_ORDER["CA"]] > 0) & (chain.aatype != UNKNOWN)
    near = (distances < CONTACT) & is_known[:, None] & is_known[None] & (place[None] - place[:, None] >= MIN_SEPARATION)
    return np.argwhere(near)


def contact_potential(chains: Iterable[Chain]) -> Float[np.ndarray, "20 20"]:
    """Return the symmetric log odds of two residue types being in contact, over all chains."""
    counts = np.full((_TYPES, _TYPES), _PSEUDO_COUNT / _TYPES)
    for chain in chains:
        pairs = contacts_of(chain)
        first, second = chain.aatype[pairs[:, 0]], chain.aatype[pairs[:, 1]]
        np.add.at(counts, (first, second), 0.5)
        np.add.at(counts, (second, first), 0.5)
    frequencies = counts.sum(axis=1) / counts.sum()
    return np.log(counts / counts.sum()) - np.log(frequencies)[:, None] - np.log(frequencies)[None]


def sample_rows(
    aatype: Int[np.ndarray, "r"],
    pairs: Int[np.ndarray, "n 2"],
    potential: Float[np.ndarray, "20 20"],
    rows: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "s r"]:
    """Return sequences sampled for a structure with these contacts; unknown residues are sampled as alanine."""
    own = np.where(aatype == UNKNOWN, RESTYPES.index("A"), aatype)
    times = rng.uniform(*_TIMES, size=rows)
    # Substitution probabilities, sharper for rows that are closer to the chain.
    logits = np.log(_substitutions()[own])[None] / times[:, None, None]
    neighbours: list[list[int]] = [[] for _ in own]
    for one, other in pairs.tolist():
        neighbours[one].append(other)
        neighbours[other].append(one)
    sequences = np.repeat(own[None], rows, axis=0)
    for _ in range(SWEEPS):
        for residue in rng.permutation(len(own)):
            energies = logits[:, residue].copy()
            for other in neighbours[residue]:
                energies += STRENGTH * potential[sequences[:, other]]
            # Gumbel trick: the maximum of energies plus Gumbel noise is a sample from the softmax.
            sequences[:, residue] = (energies + rng.gumbel(size=energies.shape)).argmax(axis=1)
    return sequences


def missing(rows: int, length: int, rng: np.random.Generator) -> Bool[np.ndarray, "s r"]:
    """Draw the gaps of rows: at one of their ends, or in a stretch."""
    place = np.arange(length)
    gaps = np.zeros((rows, length), np.bool_)
    for row in range(rows):
        if rng.random() < _MISSING_END:
            cut = int(rng.integers(1, max(2, length // 3)))
            gaps[row] |= place < cut if rng.random() < 0.5 else place >= length - cut
        if rng.random() < _MISSING_STRETCH:
            start = int(rng.integers(length))
            gaps[row] |= (place >= start) & (place < start + int(rng.integers(1, 13)))
    return gaps


def add_simulated(
    data: Path, output: Path, chains: Sequence[LibraryChain], learnt: Sequence[LibraryChain], *, rows: int
) -> None:
    """Write `<chain>/simulated.a3m` for each of `chains`, with the contact potential of the chains `learnt`."""
    potential = contact_potential(structure_of(data, chain) for chain in tqdm(learnt, unit="chain", disable=None))
    for chain in tqdm(chains, unit="alignment", disable=None):
        place = output / chain.name / SIMULATED_FILE
        if place.is_file():
            continue
        structure = structure_of(data, chain)
        rng = np.random.default_rng(zlib.crc32(chain.name.encode()))
        aatype = aatype_from_sequence(chain.sequence)
        sampled = sample_rows(aatype, contacts_of(structure), potential, rows, rng)
        letters = np.where(missing(*sampled.shape, rng), "-", np.array(list(RESTYPES))[sampled])
        text = "".join(f">simulated_{index}\n{''.join(row)}\n" for index, row in enumerate(letters))
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(place) as temporary:
            temporary.write_text(f">query\n{chain.sequence}\n{text}", encoding="ascii")


def _substitutions() -> Float[np.ndarray, "20 20"]:
    """Return the probability of each residue type in homologs of each type, by BLOSUM62 with equal frequencies."""
    odds = 2.0 ** (0.5 * np.array(substitution_matrices.load("BLOSUM62").select(RESTYPES)))
    return odds / odds.sum(axis=1, keepdims=True)
