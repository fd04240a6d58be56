import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.parse.atom_table import (
    MAX_RESIDUES,
    AtomTable,
    atom_type,
    chain_from_atoms,
    check_residues,
    groups,
    residue_letter,
)
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain


def chain(sequence: list[str], rows: list[tuple[int, str, str, float, float]]) -> Chain:
    """Each row: residue, component, atom, x, occupancy."""
    components = tuple(dict.fromkeys(row[1] for row in rows))
    table = AtomTable(
        component_names=components,
        component=np.array([components.index(row[1]) for row in rows]),
        atom_type=np.array([atom_type(row[2]) for row in rows]),
        residue_number=np.array([100 + row[0] for row in rows]),
        insertion_code=np.array(["B" if row[0] == 1 else " " for row in rows]),
        position=np.array([[row[3], 0, 0] for row in rows], dtype=np.float32),
        occupancy=np.array([row[4] for row in rows]),
        b_factor=np.array([10 * row[3] for row in rows]),
    )
    return chain_from_atoms("A", sequence, table, np.array([row[0] for row in rows]))


def test_the_alternative_with_the_highest_occupancy_counts_and_the_first_among_equals() -> None:
    rows = [
        (0, "GLY", "N", 1.0, 0.3),
        (0, "GLY", "N", 2.0, 0.7),
        (0, "GLY", "CA", 3.0, 0.5),
        (0, "GLY", "CA", 4.0, 0.5),
    ]
    read = chain(["GLY"], rows)
    assert read.atom_positions[0, ATOM_ORDER["N"], 0] == 2
    assert read.atom_positions[0, ATOM_ORDER["CA"], 0] == 3
    assert read.b_factors[0, ATOM_ORDER["CA"]] == 30
    assert read.atom_mask.sum() == 2


def test_residues_without_atoms_are_numbered_by_their_position() -> None:
    read = chain(["GLY", "ALA", "SER"], [(1, "ALA", "N", 1.0, 1.0)])
    assert read.sequence == "GAS"
    assert read.aatype.tolist() == [7, 0, 15]
    assert read.observed.tolist() == [False, True, False]
    assert read.residue_numbers.tolist() == [1, 101, 3]
    assert read.insertion_codes == (" ", "B", " ")
    assert read.residue_names == ("GLY", "ALA", "SER")


def test_where_two_components_share_a_position_the_one_in_the_sequence_is_read_else_the_first() -> None:
    rows = [
        (0, "PRO", "N", 1.0, 0.4),
        (0, "PRO", "CG", 4.0, 0.4),
        (0, "SER", "N", 2.0, 0.6),
        (0, "SER", "OG", 3.0, 0.6),
    ]
    proline, serine, neither = (chain([name], rows) for name in ("PRO", "SER", "ALA"))
    assert proline.atom_positions[0, ATOM_ORDER["N"], 0] == 1
    assert not proline.atom_mask[0, ATOM_ORDER["OG"]]
    assert serine.atom_mask[0, [ATOM_ORDER["OG"], ATOM_ORDER["CG"]]].tolist() == [1, 0]
    assert (neither.sequence, neither.residue_names) == ("A", ("PRO",))


def test_atoms_without_coordinates_were_not_observed() -> None:
    read = chain(["GLY", "ALA"], [(0, "GLY", "N", 1.0, 1.0), (1, "ALA", "N", float("nan"), 1.0)])
    assert read.observed.tolist() == [True, False]
    assert np.isfinite(read.atom_positions).all()


def test_hydrogens_are_left_out() -> None:
    read = chain(["GLY"], [(0, "GLY", "HA2", 1.0, 1.0), (0, "GLY", "N", 2.0, 1.0)])
    assert read.atom_mask.sum() == 1


@pytest.mark.parametrize(("component", "first"), [("ARG", 2.0), ("LYS", 4.0)])
def test_the_arginine_nitrogen_nearer_to_cd_is_nh1(component: str, first: float) -> None:
    rows = [(0, component, "CD", 1.0, 1.0), (0, component, "NH1", 4.0, 1.0), (0, component, "NH2", 2.0, 1.0)]
    read = chain([component], rows)
    assert read.atom_positions[0, ATOM_ORDER["NH1"], 0] == first
    assert read.b_factors[0, ATOM_ORDER["NH1"]] == 10 * first


def test_an_arginine_without_cd_keeps_its_names() -> None:
    read = chain(["ARG"], [(0, "ARG", "NH1", 4.0, 1.0), (0, "ARG", "NH2", 2.0, 1.0)])
    assert read.atom_positions[0, ATOM_ORDER["NH1"], 0] == 4


@pytest.mark.parametrize(("name", "letter"), [("MSE", "M"), ("SEP", "S"), ("TRP", "W"), ("UNK", "X"), ("DA", "X")])
def test_modified_residues_have_the_letter_of_their_parent(name: str, letter: str) -> None:
    assert residue_letter(name) == letter


def test_groups_keep_the_order_of_rows() -> None:
    assert [rows.tolist() for rows in groups(np.array([2, 0, 2, 0]), 3)] == [[1, 3], [], [0, 2]]


def test_too_many_residues_are_refused() -> None:
    check_residues(MAX_RESIDUES, "x.cif")
    with pytest.raises(InputError, match=r"x\.cif: .*more than the maximum of 262,144 residues"):
        check_residues(MAX_RESIDUES + 1, "x.cif")
