from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.parse import mmcif
from data_pipeline.parse.atom_table import residue_letter
from data_pipeline.parse.mmcif import parse_mmcif
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain
from tests.data_pipeline.parse.structure_files import Residue, expected_atoms, mmcif_text, residues

SITES = ("label_atom_id", "label_comp_id", "label_asym_id", "label_seq_id", "auth_asym_id", "auth_seq_id")
XYZ = ("Cartn_x", "Cartn_y", "Cartn_z")


def loop(category: str, columns: tuple[str, ...], *rows: str) -> str:
    names = "".join(f"_{category}.{column}\n" for column in columns)
    return f"loop_\n{names}" + "".join(f"{row}\n" for row in rows)


def entry(*parts: str) -> bytes:
    return ("data_1ABC\n" + "".join(parts)).encode()


GLY_ALA = loop("entity_poly_seq", ("entity_id", "num", "mon_id"), "1 1 GLY", "1 2 ALA")
ATOMS = loop("atom_site", (*SITES, *XYZ), "N GLY A 1 A 11 1 2 3", "CA GLY A 1 A 11 2 2 3", "N ALA A 2 A 12 3 2 3")
UNITS = loop("struct_asym", ("id", "entity_id"), "A 1")


def x_of(chain: Chain, residue: int, atom: str) -> float:
    return float(chain.atom_positions[residue, ATOM_ORDER[atom], 0])


@pytest.mark.integration
@given(st.lists(residues(), min_size=1, max_size=3))
def test_what_gemmi_writes_is_read_back(contents: list[list[Residue]]) -> None:
    chains = dict(zip("ABC", contents, strict=False))
    structure = parse_mmcif(mmcif_text(chains))
    assert structure.name == "1abc"
    assert [chain.name for chain in structure.chains] == list(chains)
    for chain in structure.chains:
        content = chains[chain.name]
        positions, mask, b_factors = expected_atoms(content)
        np.testing.assert_array_equal(chain.atom_positions, positions)
        np.testing.assert_array_equal(chain.atom_mask, mask)
        np.testing.assert_array_equal(chain.b_factors, b_factors)
        assert chain.sequence == "".join(residue_letter(residue.name) for residue in content)
        assert chain.residue_names == tuple(residue.name for residue in content)
        observed = [bool(residue.atoms) for residue in content]
        assert chain.observed.tolist() == observed
        numbers = [residue.number if residue.atoms else place for place, residue in enumerate(content, start=1)]
        assert chain.residue_numbers.tolist() == numbers
        codes = [residue.insertion_code if residue.atoms else " " for residue in content]
        assert list(chain.insertion_codes) == codes


@pytest.mark.parity
@pytest.mark.parametrize("name", ["1psm", "2q2k", "3u8v", "3zee", "4i6p", "4zey"])
def test_entries_are_read_as_by_alphafold(name: str, reference: Path, real_data: Path) -> None:
    theirs = np.load(reference / "pipeline" / f"dm200_mmcif_{name}.npz")
    structure = read_structure(real_data / "mmcif" / f"{name}.cif.gz")
    assert str(structure.release_date) == theirs["header/release_date"]
    assert (structure.resolution or 0) == theirs["header/resolution"]
    assert structure.method == theirs["header/structure_method"]
    assert [chain.name for chain in structure.chains] == theirs["chains"].tolist()
    for chain in structure.chains:
        observed = chain.observed
        assert chain.sequence == theirs[f"{chain.name}/seqres"]
        np.testing.assert_array_equal(~observed, theirs[f"{chain.name}/is_missing"])
        np.testing.assert_array_equal(chain.residue_names, theirs[f"{chain.name}/name"])
        numbers, codes = chain.residue_numbers[observed], np.array(chain.insertion_codes)[observed]
        np.testing.assert_array_equal(numbers, theirs[f"{chain.name}/residue_number"][observed])
        np.testing.assert_array_equal(codes, theirs[f"{chain.name}/insertion_code"][observed])
    chain = next(chain for chain in structure.chains if chain.name == theirs["atom_chain"])
    positions = theirs["all_atom_positions"].copy()
    if name == "3u8v":  # AlphaFold 2.0.0 did not yet look for the nearer nitrogen; 2.3 does
        nh1, nh2 = ATOM_ORDER["NH1"], ATOM_ORDER["NH2"]
        positions[85, [nh1, nh2]] = positions[85, [nh2, nh1]]
    np.testing.assert_array_equal(chain.atom_positions, positions)
    np.testing.assert_array_equal(chain.atom_mask, theirs["all_atom_mask"])


def test_the_header_gives_name_date_resolution_and_method() -> None:
    header = (
        "_entry.id 1ABC\n_exptl.method 'X-RAY DIFFRACTION'\n_refine.ls_d_res_high 2.5\n_reflns.d_resolution_high 2.4\n",
        loop("pdbx_audit_revision_history", ("revision_date",), "2020-02-02", "2019-03-04", "?"),
    )
    structure = parse_mmcif(entry(*header, GLY_ALA, UNITS, ATOMS))
    assert (structure.name, structure.method) == ("1abc", "x-ray diffraction")
    assert structure.release_date == date(2019, 3, 4)
    assert structure.resolution == 2.4  # AlphaFold takes the last one


def test_the_release_date_of_older_files_is_found() -> None:
    revisions = loop("database_PDB_rev", ("num", "date"), "1 1999-01-02", "2 2009-02-24")
    assert parse_mmcif(entry(revisions, GLY_ALA, UNITS, ATOMS)).release_date == date(1999, 1, 2)


def test_what_the_header_does_not_say_is_unknown() -> None:
    structure = parse_mmcif(entry("_refine.ls_d_res_high ?\n", GLY_ALA, UNITS, ATOMS), path="somewhere/Model-3.cif.gz")
    assert (structure.name, structure.method) == ("Model-3", "")
    assert (structure.release_date, structure.resolution) == (None, None)


@pytest.mark.parametrize(
    ("stated", "name"), [("pdb_00001ABC", "1abc"), ("XXXX", "file"), ("'../etc'", "file"), ("AF-P1-F1", "af-p1-f1")]
)
def test_only_an_id_that_is_safe_in_a_file_name_names_the_entry(stated: str, name: str) -> None:
    assert parse_mmcif(entry(f"_entry.id {stated}\n", GLY_ALA, UNITS, ATOMS), path="file.cif").name == name


def test_of_residues_that_share_a_position_the_first_counts() -> None:
    sequence = loop("entity_poly_seq", ("entity_id", "num", "mon_id"), "1 1 GLY", "1 2 PRO", "1 2 SER", "1 3 ALA")
    rows = ("N GLY A 1 A 1 1 0 0", "N SER A 2 A 2 2 0 0", "N PRO A 2 A 2 3 0 0", "N ALA A 3 A 3 4 0 0")
    [chain] = parse_mmcif(entry(sequence, UNITS, loop("atom_site", (*SITES, *XYZ), *rows))).chains
    assert chain.sequence == "GPA"
    assert [x_of(chain, residue, "N") for residue in range(3)] == [1, 3, 4]


def test_only_the_selenium_of_selenomethionine_is_its_sulphur() -> None:
    sequence = loop("entity_poly_seq", ("entity_id", "num", "mon_id"), "1 1 MSE", "1 2 SEC")
    rows = [f"{atom} {name} A {k} A {k} {3.8 * k} 0 0" for k, name in ((1, "MSE"), (2, "SEC")) for atom in ("N", "SE")]
    [chain] = parse_mmcif(entry(sequence, UNITS, loop("atom_site", (*SITES, *XYZ), *rows))).chains
    assert chain.atom_mask[:, ATOM_ORDER["SD"]].tolist() == [1, 0]
    assert chain.atom_mask.sum() == 3


def test_only_the_first_model_is_read() -> None:
    rows = ("N GLY A 1 A 1 1 0 0 2", "CA GLY A 1 A 1 9 0 0 1", "N ALA A 2 A 2 2 0 0 2")
    atoms = loop("atom_site", (*SITES, *XYZ, "pdbx_PDB_model_num"), *rows)
    [chain] = parse_mmcif(entry(GLY_ALA, UNITS, atoms)).chains
    assert [x_of(chain, residue, "N") for residue in range(2)] == [1, 2]
    assert chain.atom_mask.sum() == 2


def test_chains_bear_the_authors_names_and_others_a_reason() -> None:
    polymers = loop("entity_poly_seq", ("entity_id", "num", "mon_id"), "1 1 GLY", "1 2 ALA", "2 1 DA", "3 1 GLY")
    units = loop("struct_asym", ("id", "entity_id"), "A 1", "B 2", "C 3", "D 4", "E 5")
    kinds = loop("chem_comp", ("id", "type"), "GLY 'peptide linking'", "ALA 'L-peptide linking'", "DA 'DNA linking'")
    scheme = loop("pdbx_poly_seq_scheme", ("asym_id", "pdb_strand_id"), "C Z")
    rows = ("N GLY A 1 H 1 1 0 0", "P DA B 1 T 1 1 0 0", "O HOH D . H 1 1 0 0", "O HOH E . W 1 1 0 0")
    structure = parse_mmcif(entry(polymers, units, kinds, scheme, loop("atom_site", (*SITES, *XYZ), *rows)))
    assert [(chain.name, chain.sequence) for chain in structure.chains] == [("H", "GA")]
    assert structure.skipped == {
        "T": "a polymer, but not a protein",
        "W": "not a polymer, only ligands or water",
        "Z": "none of its residues was observed",
    }


def test_chains_have_the_description_of_their_entity() -> None:
    polymers = loop("entity_poly_seq", ("entity_id", "num", "mon_id"), "1 1 GLY", "2 1 ALA")
    entities = loop("entity", ("id", "pdbx_description"), "2 ?", "1\n;Hemoglobin\nsubunit alpha\n;")
    units = loop("struct_asym", ("id", "entity_id"), "A 1", "B 2")
    atoms = loop("atom_site", (*SITES, *XYZ), "N GLY A 1 H 1 1 0 0", "N ALA B 1 L 1 1 0 0")
    for parts, descriptions in (((entities,), ["Hemoglobin subunit alpha", ""]), ((), ["", ""])):
        structure = parse_mmcif(entry(polymers, *parts, units, atoms))
        assert [chain.description for chain in structure.chains] == descriptions


def test_of_two_proteins_with_one_name_the_one_with_more_residues_is_read() -> None:
    units = loop("struct_asym", ("id", "entity_id"), "A 1", "B 1")
    rows = ("N GLY A 1 H 1 1 0 0", "N GLY B 1 H 5 2 0 0", "N ALA B 2 H 6 3 0 0")
    structure = parse_mmcif(entry(GLY_ALA, units, loop("atom_site", (*SITES, *XYZ), *rows)))
    [chain] = structure.chains
    assert x_of(chain, 0, "N") == 2
    assert "same name" in structure.skipped["H (again)"]


def test_a_sequence_may_begin_with_another_number_than_1() -> None:
    sequence = loop("entity_poly_seq", ("entity_id", "num", "mon_id"), "1 11 GLY", "1 12 ALA")
    [chain] = parse_mmcif(
        entry(sequence, UNITS, loop("atom_site", (*SITES, *XYZ), "N ALA A 12 A 5 7 0 0", "N ALA A 99 A 6 8 0 0"))
    ).chains
    assert (chain.sequence, chain.observed.tolist()) == ("GA", [False, True])
    assert chain.residue_numbers.tolist() == [11, 5]


@pytest.mark.parametrize("left_out", [None, *SITES])
def test_without_a_stated_sequence_the_observed_residues_are_read(left_out: str | None) -> None:
    columns = [column for column in (*SITES, *XYZ) if column != left_out]
    if left_out in {"label_atom_id", "label_comp_id"}:
        columns.append(left_out.replace("label", "auth"))
    rows = []
    for place, component in enumerate(("GLY", "ALA", "MSE", "SEC"), start=1):
        for atom, y in (("N", 0), ("CA", 1), ("C", 2), ("SE" if component in ("MSE", "SEC") else "O", 3)):
            values = {"label_atom_id": atom, "label_comp_id": component, "label_asym_id": "A", "auth_asym_id": "A"}
            values |= {"label_seq_id": str(place), "auth_seq_id": str(place)}
            values |= {"auth_atom_id": atom, "auth_comp_id": component}
            values |= {"Cartn_x": f"{3.8 * place:.1f}", "Cartn_y": str(y), "Cartn_z": "0"}
            rows.append(" ".join(values[column] for column in columns))
    [chain] = parse_mmcif(entry(loop("atom_site", tuple(columns), *rows))).chains
    assert (chain.name, chain.sequence) == ("A", "GAMX")
    assert chain.residue_numbers.tolist() == [1, 2, 3, 4]
    assert chain.atom_mask.sum() == 15  # all but the selenium of selenocysteine
    assert chain.atom_mask[2, ATOM_ORDER["SD"]]


def test_a_sequence_in_one_letter_code_shows_what_was_not_observed() -> None:
    columns = (
        "label_atom_id",
        "label_comp_id",
        "label_asym_id",
        "label_entity_id",
        "auth_asym_id",
        "auth_seq_id",
        *XYZ,
    )
    names = ((2, "ALA"), (3, "SER"), (5, "TRP"))
    rows = [f"{atom} {name} A 1 A {k} {3.8 * k} {y} 0" for k, name in names for y, atom in enumerate(("N", "CA", "C"))]
    sequence = loop("entity_poly", ("entity_id", "type", "pdbx_seq_one_letter_code"), "1 polypeptide(L) GAS(MSE)W")
    entities = loop("entity", ("id", "type"), "1 polymer")
    [chain] = parse_mmcif(entry(entities, sequence, loop("atom_site", columns, *rows))).chains
    assert (chain.sequence, chain.observed.tolist()) == ("GASMW", [False, True, True, False, True])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"data_a\n_cell.length_a 1\n", "there are no atoms"),
        (entry(GLY_ALA, UNITS, ATOMS.replace("Cartn_z", "Cartn_q")), "there are no atoms"),
        (entry(GLY_ALA, UNITS, ATOMS.replace("3 2 3", "3 x 3")), "_atom_site.Cartn_y has 'x', expected a number"),
        (entry(ATOMS.replace("3 2 3", "3 x 3")), "_atom_site.Cartn_y has 'x', expected a number"),
        (entry(GLY_ALA.replace("1 2", "1 4"), UNITS, ATOMS), "_entity_poly_seq lacks residue numbers of entity '1'"),
        (entry(GLY_ALA.replace("1 2", "1 b"), UNITS, ATOMS), "_entity_poly_seq.num has 'b'"),
        (entry(GLY_ALA, UNITS, ATOMS.replace("A 12", "A 12b")), "_atom_site.auth_seq_id has '12b'"),
        (entry(ATOMS.replace("_atom_site.auth_seq_id", "_other.auth_seq_id")), "its atoms cannot be read"),
        (entry(ATOMS.replace("_atom_site.", "_other.", 1)), "its atoms cannot be read"),
        (entry(ATOMS.replace("CA GLY", "AVERYLONGNAME GLY")), "its names are too long"),
    ],
)
def test_files_that_cannot_be_read_are_refused(content: bytes, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_mmcif(content, path="x.cif")
    assert str(refused.value).startswith("x.cif")
    assert problem in str(refused.value)


def test_an_atom_without_coordinates_was_not_observed() -> None:
    [chain] = parse_mmcif(entry(GLY_ALA, UNITS, ATOMS.replace("3 2 3", "? 2 3"))).chains
    assert chain.observed.tolist() == [True, False]


def test_more_chains_or_residues_than_memory_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmcif, "_MAX_CHAINS", 0)
    with pytest.raises(InputError, match="more than the maximum of 0 chains"):
        parse_mmcif(entry(GLY_ALA, UNITS, ATOMS))
    monkeypatch.setattr(mmcif, "_MAX_OBSERVED", 1)
    with pytest.raises(InputError, match="more than 1 residues, including water"):
        parse_mmcif(entry(ATOMS))
    monkeypatch.undo()
    rows = [f"1 {number} GLY" for number in range(1, 70_001)]
    sequence = loop("entity_poly_seq", ("entity_id", "num", "mon_id"), *rows)
    units = loop("struct_asym", ("id", "entity_id"), "A 1", "B 1", "C 1", "D 1")
    with pytest.raises(InputError, match="more than the maximum of 262,144 residues"):
        parse_mmcif(entry(sequence, units, ATOMS))
