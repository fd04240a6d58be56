"""PDB files keep to the format, and gemmi and Biopython read back what was written."""

import dataclasses
import io
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest
from Bio import SeqIO
from Bio.PDB import PDBParser
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline import residues
from data_pipeline.protein import Protein
from helixfold.results.chains import ring_bonds, split_chains
from helixfold.results.pdb import hybrid36, models_to_pdb, plain_text, to_pdb
from tests.results.proteins import (
    assert_same_atoms,
    atoms_by_biopython,
    atoms_by_gemmi,
    expected_atoms,
    expected_sequences,
    proteins,
    random_protein,
    real_protein,
)
from tests.support import special_complex


def changed(protein: Protein, **values: Any) -> Protein:
    return dataclasses.replace(protein, **values)


@settings(max_examples=40, deadline=None)
@given(proteins())
def test_any_structure_is_read_back(protein: Protein) -> None:
    text = to_pdb(protein, ["a remark"])
    structure = gemmi.read_pdb_string(text)
    assert_same_atoms(atoms_by_gemmi(structure), expected_atoms(protein))
    assert_same_atoms(atoms_by_biopython(PDBParser(PERMISSIVE=False), text), expected_atoms(protein))


@settings(max_examples=20, deadline=None)
@given(proteins())
def test_the_whole_sequence_is_read_back_even_of_residues_without_atoms(protein: Protein) -> None:
    expected = {
        name: "".join(residues.RESTYPES_WITH_X[residues.THREE_LETTER.index(residue)] for residue in sequence)
        for name, sequence in expected_sequences(protein).items()
    }
    text = to_pdb(protein)
    records = SeqIO.parse(io.StringIO(text), "pdb-seqres")
    assert {record.annotations["chain"]: str(record.seq) for record in records} == expected


def test_gemmi_reads_the_sequence_of_every_chain() -> None:
    protein = random_protein(40, chains=2, unknown=(3, 39))
    structure = gemmi.read_pdb_string(to_pdb(protein))
    assert {entity.name: entity.full_sequence for entity in structure.entities} == expected_sequences(protein)


def test_a_real_structure_is_read_back(real_data: Path) -> None:
    protein = real_protein(real_data / "core" / "1crn.cif.gz")
    assert len(protein.aatype) == 46
    text = to_pdb(protein)
    assert_same_atoms(atoms_by_gemmi(gemmi.read_pdb_string(text)), expected_atoms(protein))
    assert_same_atoms(atoms_by_biopython(PDBParser(PERMISSIVE=False), text), expected_atoms(protein))


def test_every_line_has_80_columns_and_records_stand_in_the_formats_order() -> None:
    lines = to_pdb(random_protein(30, chains=2), ["a remark"]).splitlines()
    assert {len(line) for line in lines} == {80}
    records = re.sub(
        r"(.)\1+", r"\1", "".join({"ATOM": "A", "TER": "T"}.get(line[:6].strip(), line[0]) for line in lines)
    )
    assert records == "RSMATATE"
    assert [line.rstrip() for line in lines[-2:]] == ["ENDMDL", "END"]
    serials = [int(line[6:11]) for line in lines if line.startswith(("ATOM", "TER"))]
    assert serials == list(range(1, len(serials) + 1))


def test_columns_are_those_of_the_format() -> None:
    protein = random_protein(1)
    positions = np.zeros_like(protein.atom_positions)
    positions[0, 1] = [-999.999, 9999.999, 0.0005]
    b_factors = np.full_like(protein.b_factors, 87.654)
    lines = to_pdb(
        changed(
            protein,
            aatype=np.array([residues.RESTYPES.index("W")]),
            atom_positions=positions.astype(np.float64),
            atom_mask=np.array(residues.ATOM37_MASK)[[residues.RESTYPES.index("W")]],
            b_factors=b_factors,
            chain_index=np.array([1]),
            residue_index=np.array([42]),
        )
    ).splitlines()
    assert lines[0].rstrip() == "SEQRES   1 B    1  TRP"
    assert lines[1].rstrip() == "MODEL        1"
    assert lines[3] == "ATOM      2  CA  TRP B  42    -999.9999999.999   0.001  1.00 87.65           C  "
    assert lines[-3].rstrip() == "TER      15      TRP B  42"


def test_remarks_are_wrapped_and_cannot_add_records() -> None:
    note = "untrained demonstration parameters: " * 5 + "\nATOM      1 \x00\x1b é"
    text = to_pdb(random_protein(2), [note, "", "x" * 200])
    remarks = [line for line in text.splitlines() if line.startswith("REMARK")]
    assert text.isascii()
    assert text.splitlines()[: len(remarks)] == remarks
    assert all(len(line) == 80 and line.startswith("REMARK   6") for line in remarks)
    assert " ".join(line[11:].strip() for line in remarks[1:-3]) == plain_text(note)
    assert "".join(line[11:].strip() for line in remarks[-3:]) == "x" * 200
    assert "\n".join(remarks).count("ATOM") == 1
    assert gemmi.read_pdb_string(text).raw_remarks == remarks


def test_a_structure_without_remarks_has_no_remark_lines() -> None:
    assert "REMARK" not in to_pdb(random_protein(2))


@pytest.mark.parametrize(
    ("number", "width", "text"),
    [
        (1, 5, "    1"),
        (99_999, 5, "99999"),
        (100_000, 5, "A0000"),
        (100_035, 5, "A000Z"),
        (43_770_015, 5, "ZZZZZ"),
        (43_770_016, 5, "a0000"),
        (87_440_031, 5, "zzzzz"),
        (9_999, 4, "9999"),
        (10_000, 4, "A000"),
        (-999, 4, "-999"),
    ],
)
def test_numbers_beyond_the_columns_become_hybrid36(number: int, width: int, text: str) -> None:
    assert hybrid36(number, width) == text


@pytest.mark.parametrize(("number", "width"), [(87_440_032, 5), (-1_000, 4), (-10_000, 5)])
def test_numbers_beyond_hybrid36_are_refused(number: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"{number} does not fit {width} columns"):
        hybrid36(number, width)


def test_a_chain_beyond_9999_residues_and_99999_atoms_is_read_back_by_gemmi() -> None:
    protein = random_protein(13_000)
    text = to_pdb(protein)
    assert {len(line) for line in text.splitlines()} == {80}
    structure = gemmi.read_pdb_string(text)
    chain = structure[0]["A"]
    assert [residue.seqid.num for residue in chain] == list(range(1, 13_001))
    assert (
        [residue.name for residue in chain] == structure.entities[0].full_sequence == expected_sequences(protein)["A"]
    )
    count = int(protein.atom_mask.sum())
    assert count > 100_000
    assert chain[-1][-1].serial == count
    assert chain[-1][-1].pos.tolist() == pytest.approx(expected_atoms(protein).popitem()[1][:3], abs=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"atom_positions": np.full((3, 37, 3), np.nan)}, "coordinates must be finite"),
        ({"b_factors": np.full((3, 37), np.inf)}, "B-factors must be finite"),
        ({"atom_positions": np.full((3, 37, 3), -1000.0)}, "coordinates in a PDB file must lie between"),
        ({"atom_positions": np.full((3, 37, 3), 9999.9996)}, "write mmCIF instead"),
        ({"b_factors": np.full((3, 37), 1000.0)}, "B-factors in a PDB file must lie between"),
        ({"residue_index": np.array([1, 2, 2])}, "residue numbers must increase along a chain, got 2 after 2"),
        ({"chain_index": np.array([0, 0, 62])}, "chain IDs of PDB files have a single character"),
        ({"chain_index": np.array([0, 0, 18_314])}, "chain_index must be 0 to 18313, got 0 to 18314"),
        ({"chain_index": np.array([-1, 0, 0])}, "got -1 to 0"),
        ({"chain_index": np.array([0, 1, 0])}, "must be contiguous, got chains in the order A B A"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_pdb(changed(random_protein(3), **change))


def test_bad_values_of_absent_atoms_do_not_matter() -> None:
    protein = random_protein(3)
    positions = np.where(protein.atom_mask[..., None] > 0.5, protein.atom_positions, np.nan)
    assert to_pdb(changed(protein, atom_positions=positions)) == to_pdb(protein)


def test_a_structure_without_atoms_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one atom, got none in 2 residues"):
        split_chains(random_protein(2, unknown=(0, 1)))
    with pytest.raises(ValueError, match="got none in 0 residues"):
        split_chains(random_protein(0))


@given(st.text())
def test_plain_text_is_one_line_of_printable_ascii(text: str) -> None:
    plain = plain_text(text)
    assert plain.isascii()
    assert plain.isprintable()
    assert plain == plain_text(plain)


@settings(max_examples=20, deadline=None)
@given(proteins(), st.data())
def test_rings_are_read_back(protein: Protein, data: st.DataObject) -> None:
    chains = split_chains(protein)
    numbers = [int(protein.chain_index[chain.start]) for chain in chains]
    cyclic = frozenset(data.draw(st.lists(st.sampled_from(numbers), unique=True)))
    ring = changed(protein, cyclic_chains=cyclic)
    bonds = ring_bonds(ring, chains)
    text = to_pdb(ring)
    structure = gemmi.read_pdb_string(text)
    assert [(each.partner1.chain_name, each.partner1.res_id.seqid.num) for each in structure.connections] == [
        (bond.chain, protein.residue_index[bond.last]) for bond in bonds
    ]
    assert [each.partner2.res_id.seqid.num for each in structure.connections] == [
        protein.residue_index[bond.first] for bond in bonds
    ]
    serials = {line[6:11]: line for line in text.splitlines() if line.startswith("ATOM")}
    joined = [[line[6:11], line[11:16]] for line in text.splitlines() if line.startswith("CONECT")]
    assert [[serials[end][12:16].strip() for end in pair] for pair in joined] == [["C", "N"], ["N", "C"]] * len(bonds)
    assert to_pdb(protein).replace("CONECT", "") == to_pdb(protein)


def columns(line: str) -> dict[str, str]:
    """The fields of an ATOM or TER record by the columns of the PDB format, version 3.3."""
    fields = {"serial": (7, 11), "atom": (13, 16), "altloc": (17, 17), "residue": (18, 20), "chain": (22, 22)}
    fields |= {"number": (23, 26), "icode": (27, 27), "x": (31, 38), "y": (39, 46), "z": (47, 54)}
    fields |= {"occupancy": (55, 60), "b": (61, 66), "element": (77, 78), "charge": (79, 80)}
    return {name: line[first - 1 : last].strip() for name, (first, last) in fields.items()}


def atom_records(*, moved: float = 0.0, with_hydrogens: bool = False) -> list[tuple[str, ...]]:
    """What the records of one model of the special complex say, from serial to element; TER ends each chain."""
    places = special_complex.residues()
    records: list[tuple[str, ...]] = []
    for chain, members in groupby(enumerate(places), key=lambda member: member[1].chain):
        for place, residue in members:
            where = (residue.name, chain, str(residue.number))
            atoms = [(name, x, y, z + moved) for name, (x, y, z) in residue.atoms.items()]
            if with_hydrogens:
                atoms += [(name, *at) for owner, name, at in special_complex.hydrogens()[1] if owner == place]
            for name, x, y, z in atoms:
                position = (f"{x:.3f}", f"{y:.3f}", f"{z:.3f}")
                serial = str(len(records) + 1)
                records.append((serial, name, *where, *position, "1.00", f"{residue.plddt:.2f}", name[0]))
        records.append((str(len(records) + 1), "", *records[-1][2:5], "", "", "", "", "", ""))
    return records


def written_records(lines: list[str]) -> list[tuple[str, ...]]:
    names = ("serial", "atom", "residue", "chain", "number", "x", "y", "z", "occupancy", "b", "element")
    found = [columns(line) for line in lines if line.startswith(("ATOM", "TER"))]
    assert {each[name] for each in found for name in ("altloc", "icode", "charge")} == {""}
    return [tuple(each[name] for name in names) for each in found]


@pytest.mark.parametrize("with_hydrogens", [False, True])
def test_every_column_of_a_special_complex_has_its_value(with_hydrogens: bool) -> None:
    hydrogens = special_complex.hydrogens()[0] if with_hydrogens else None
    names = special_complex.chain_names()
    lines = to_pdb(special_complex.protein(), hydrogens=hydrogens, chain_ids=names).splitlines()
    assert written_records(lines) == atom_records(with_hydrogens=with_hydrogens)
    kinds = [line[:6].strip() for line in lines if line.startswith(("ATOM", "TER"))]
    assert kinds == ["ATOM" if record[1] else "TER" for record in atom_records(with_hydrogens=with_hydrogens)]
    sequences = {name: [each.name for each in special_complex.residues() if each.chain == name] for name in names}
    stated = [line for line in lines if line.startswith("SEQRES")]
    assert [(line[11], int(line[13:17]), line[19:].split()) for line in stated] == [
        (name, len(sequence), sequence) for name, sequence in sequences.items()
    ]


def test_models_of_a_special_complex_are_read_back_one_by_one() -> None:
    moves = (0.0, 4.5, -11.25)
    proteins = [special_complex.protein(moved=moved) for moved in moves]
    text = models_to_pdb(proteins, chain_ids=special_complex.chain_names())
    parts = re.findall(r"MODEL +(\d+) *\n(.*?)ENDMDL", text, re.DOTALL)
    assert [int(number) for number, _ in parts] == [1, 2, 3]
    assert [written_records(part.splitlines()) for _, part in parts] == [atom_records(moved=moved) for moved in moves]
    expected = [
        (each.chain, each.number, each.name, name, x, y, z, each.plddt)
        for each in special_complex.residues()
        for name, (x, y, z) in each.atoms.items()
    ]
    by_biopython = PDBParser(PERMISSIVE=False).get_structure("x", io.StringIO(text))
    by_gemmi = gemmi.read_pdb_string(text)
    for moved, theirs, others in zip(moves, by_biopython, by_gemmi, strict=True):
        found = [
            (chain.id, residue.id[1], residue.resname, atom.name, *atom.coord, atom.bfactor)
            for chain in theirs
            for residue in chain
            for atom in residue
        ]
        also = [
            (at.chain.name, at.residue.seqid.num, at.residue.name, at.atom.name, *at.atom.pos.tolist(), at.atom.b_iso)
            for at in others.all()
        ]
        for read in (found, also):
            assert [atom[:4] for atom in read] == [atom[:4] for atom in expected]
            places = np.array([atom[4:] for atom in expected]) + np.array([0, 0, moved, 0])
            np.testing.assert_allclose(np.array([atom[4:] for atom in read], float), places, atol=1e-4)


def test_rings_of_a_special_complex_join_the_ends_of_their_own_chains() -> None:
    """The first and the third of four chains are rings, and hydrogens and ends of chains have serial numbers, too."""
    hydrogens, _ = special_complex.hydrogens()
    protein = special_complex.protein(cyclic=frozenset({0, 2}))
    lines = to_pdb(protein, hydrogens=hydrogens, chain_ids=special_complex.chain_names()).splitlines()
    serials = {(r[3], r[4], r[1]): int(r[0]) for r in atom_records(with_hydrogens=True) if r[1]}
    ends = [(("H", "5", "C"), ("H", "0", "N")), (("h", "7", "C"), ("h", "3", "N"))]
    pairs = [(serials[one], serials[other]) for one, other in ends]
    joined = [(int(line[6:11]), int(line[11:16])) for line in lines if line.startswith("CONECT")]
    assert joined == [way for one, other in pairs for way in ((one, other), (other, one))]
    links = [
        (
            *(line[17:20], line[21], line[22:26].strip(), line[12:16].strip()),
            *(line[47:50], line[51], line[52:56].strip(), line[42:46].strip(), float(line[73:78])),
        )
        for line in lines
        if line.startswith("LINK")
    ]
    atoms = {
        (each.chain, name, str(each.number)): at
        for each in special_complex.residues()
        for name, at in each.atoms.items()
    }
    lengths = [
        np.linalg.norm(np.subtract(atoms[c, "C", last], atoms[c, "N", first])) for (c, last, _), (_, first, _) in ends
    ]
    assert links == [
        ("GLY", c, last, "C", "GLY", c, first, "N", pytest.approx(length, abs=0.005))
        for ((c, last, _), (_, first, _)), length in zip(ends, lengths, strict=True)
    ]
