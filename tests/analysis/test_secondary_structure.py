"""Helices and strands are found where structures were built with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import protein_from_chains
from helixfold.analysis.secondary_structure import secondary_structure

STRUCTURES = Path(__file__).parents[2] / "examples" / "structures"


@pytest.mark.parametrize(
    ("name", "letter", "share"),
    [("helix_long", "H", 0.8), ("meander", "E", 0.5), ("hairpin_long", "E", 0.6), ("polyproline", "-", 1.0)],
)
def test_structures_are_of_their_kind(name: str, letter: str, share: float) -> None:
    protein = protein_from_chains(read_structure(STRUCTURES / f"{name}.pdb").chains)
    letters = secondary_structure(protein)
    assert len(letters) == len(protein.aatype)
    assert letters.count(letter) / len(letters) >= share
    assert not set("HE-") - set("-" + letter) & set(letters)


def test_a_break_of_the_chain_ends_a_helix_and_two_residues_have_none() -> None:
    protein = protein_from_chains(read_structure(STRUCTURES / "helix_long.pdb").chains)
    middle = len(protein.aatype) // 2
    broken = replace(protein, atom_positions=protein.atom_positions.copy())
    broken.atom_positions[middle:] += 100.0
    assert secondary_structure(broken)[middle - 1 : middle + 1] == "--"
    cut = {name: getattr(protein, name)[:2] for name in ("aatype", "atom_positions", "atom_mask", "residue_index")}
    short = replace(protein, **cut, chain_index=np.zeros(2, int), b_factors=protein.b_factors[:2])
    assert secondary_structure(short) == "--"
