from datetime import date

import numpy as np
import pytest
from hypothesis import assume, given

from data_pipeline.io.errors import InputError
from data_pipeline.parse import gemmi_chains
from data_pipeline.parse.atom_table import residue_letter
from data_pipeline.parse.gemmi_chains import parse_pdb
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain
from tests.data_pipeline.parse.structure_files import Residue, expected_atoms, pdb_text, residues

BACKBONE = ("N", "CA", "C", "O")


def line(  # noqa: PLR0917
    atom: str,
    name: str,
    number: str,
    x: float = 0,
    y: float = 0,
    chain: str = "A",
    record: str = "ATOM",
    alt: str = " ",
) -> str:
    return f"{record:6}    1  {atom:3}{alt}{name} {chain}{number:5}   {x:8.3f}{y:8.3f}{0:8.3f}  1.00  5.00\n"


def residue(name: str, number: str, x: float, chain: str = "A") -> str:
    return "".join(line(atom, name, number, x, y, chain) for y, atom in enumerate(BACKBONE))


def strand(text: str, first: int = 1, chain: str = "A") -> str:
    """Bonded residues, given as three-letter names."""
    lines = []
    for k, name in enumerate(text.split()):
        for atom, x in (("N", 0.0), ("CA", 1.2), ("C", 2.4), ("O", 2.5)):
            lines.append(line(atom, name, f"{first + k:4} ", 3.6 * k + x, float(atom == "O"), chain))
    return "".join(lines)


def read(*parts: str, path: str = "x.pdb") -> Chain:
    [chain] = parse_pdb("".join(parts).encode(), path=path).chains
    return chain


@given(residues())
def test_what_gemmi_writes_is_read_back(content: list[Residue]) -> None:
    # Without TER gemmi takes HETATM records at the end of a chain, and unknown residues alone, for ligands.
    assume(content[-1].name not in {"UNK", "MSE", "SEP"})
    [chain] = parse_pdb(pdb_text({"A": content}, state_sequence=False)).chains
    observed = [residue for residue in content if residue.atoms]
    positions, mask, b_factors = expected_atoms(observed)
    np.testing.assert_allclose(chain.atom_positions, positions, atol=1e-5)
    np.testing.assert_array_equal(chain.atom_mask, mask)
    np.testing.assert_array_equal(chain.b_factors, b_factors)
    assert chain.observed.all()
    assert chain.residue_names == tuple(residue.name for residue in observed)
    assert chain.sequence == "".join(residue_letter(residue.name) for residue in observed)
    assert chain.residue_numbers.tolist() == [residue.number for residue in observed]
    assert list(chain.insertion_codes) == [residue.insertion_code for residue in observed]


def test_the_header_gives_name_date_resolution_and_method() -> None:
    header = """HEADER    HYDROLASE                               01-JAN-99   1ABC
EXPDTA    X-RAY DIFFRACTION; NEUTRON
EXPDTA   2 DIFFRACTION
REVDAT   3   24-FEB-09 1ABC    1       VERSN
REVDAT   1   05-MAR-99 1ABC    0
REMARK   2 RESOLUTION.    1.90 ANGSTROMS.
"""
    structure = parse_pdb((header + strand("GLY ALA")).encode())
    assert (structure.name, structure.method) == ("1abc", "x-ray diffraction,neutron diffraction")
    assert structure.release_date == date(1999, 3, 5)  # the header's is the date of deposition
    assert structure.resolution == 1.9


@pytest.mark.parametrize(
    "header",
    [
        "",
        "REMARK   2 RESOLUTION. NOT APPLICABLE.\nREVDAT   1   99-XXX-99 1ABC    0\nREVDAT   1   31-FEB-99 1ABC    0\n",
    ],
)
def test_what_the_header_does_not_say_is_unknown(header: str) -> None:
    structure = parse_pdb((header + strand("GLY ALA")).encode(), path="dir/T1031-D1.pdb.gz")
    assert (structure.name, structure.method) == ("T1031-D1", "")
    assert (structure.release_date, structure.resolution) == (None, None)


def test_a_chain_without_a_name_is_called_by_an_underscore() -> None:
    assert read(strand("GLY ALA", chain=" ")).name == "_"


def test_residue_numbers_place_residues_in_seqres() -> None:
    seqres = "SEQRES   1 A    6  GLY GLY GLY ALA GLY GLY\n"
    chain = read(seqres, strand("GLY", first=2), strand("ALA GLY", first=4))
    assert chain.sequence == "GGGAGG"
    assert chain.observed.tolist() == [False, True, False, True, True, False]
    assert chain.residue_numbers.tolist() == [1, 2, 3, 4, 5, 6]


def test_of_several_places_in_seqres_the_one_by_the_numbers_is_taken() -> None:
    chain = read("SEQRES   1 A    6  GLY ALA GLY ALA GLY ALA\n", strand("GLY ALA", first=3))
    assert chain.observed.tolist() == [False, False, True, True, False, False]


def test_numbers_that_begin_elsewhere_place_residues_where_the_names_fit() -> None:
    seqres = "SEQRES   1 A    6  GLY TRP SER ALA LEU GLY\n"
    chain = read(seqres, strand("SER ALA LEU", first=43))
    assert chain.observed.tolist() == [False, False, True, True, True, False]
    assert chain.residue_numbers.tolist() == [1, 2, 43, 44, 45, 6]


def test_seqres_and_atoms_are_aligned_where_the_numbers_do_not_count_along() -> None:
    seqres = "SEQRES   1 A    7  GLY TRP SER ALA LEU GLY LYS\n"
    far = strand("GLY LYS", first=60).replace(" 3.600", "93.600").replace("   0.000   0.000", "  90.000   0.000")
    chain = read(seqres, strand("TRP SER ALA", first=20), far)
    assert chain.observed.tolist() == [False, True, True, True, False, True, True]
    assert chain.residue_numbers.tolist() == [1, 20, 21, 22, 5, 60, 61]


def test_a_few_residues_other_than_in_seqres_keep_their_places() -> None:
    names = ["GLY", "TRP", "SER", "ALA", "LEU", "GLY", "LYS", "ASP", "GLU", "PHE"]
    seqres = f"SEQRES   1 A   10  {' '.join(names)}\n"
    chain = read(seqres, strand(" ".join([*names[:4], "VAL", *names[5:]])))
    assert chain.sequence == "GWSALGKDEF"
    assert chain.residue_names[4] == "VAL"


@pytest.mark.parametrize("seqres", ["TRP TRP TRP TRP", "GLY ALA", "GLY TRP SER TRP"])
def test_a_seqres_of_another_protein_is_left_out(seqres: str) -> None:
    chain = read(f"SEQRES   1 A    4  {seqres}\n", strand("GLY ALA SER LYS"))
    assert chain.sequence == "GASK"


def test_insertion_codes_make_residues_of_their_own() -> None:
    chain = read(residue("GLY", "  10 ", 0), residue("ALA", "  10A", 4), residue("SER", "  11 ", 8))
    assert chain.sequence == "GAS"
    assert chain.residue_numbers.tolist() == [10, 10, 11]
    assert chain.insertion_codes == (" ", "A", " ")


def test_of_two_residues_at_one_place_the_first_is_read() -> None:
    alternatives = "".join(line(atom, "PRO", "   2 ", 4, alt="A") for atom in BACKBONE)
    alternatives += "".join(line(atom, "SER", "   2 ", 5, alt="B") for atom in (*BACKBONE, "OG"))
    chain = read(residue("GLY", "   1 ", 0), alternatives, residue("ALA", "   3 ", 8))
    assert chain.sequence == "GPA"
    assert chain.atom_mask[1].sum() == 4
    assert chain.atom_positions[1, 0, 0] == 4


def test_selenomethionine_is_methionine() -> None:
    rows = "".join(line(atom, "MSE", "   2 ", 4, record="HETATM") for atom in (*BACKBONE, "CB", "CG", "CE"))
    selenium = f"HETATM    1 SE   MSE A   2    {5:8.3f}{0:8.3f}{0:8.3f}  1.00  5.00\n"
    chain = read(residue("GLY", "   1 ", 0), rows, selenium, residue("ALA", "   3 ", 8))
    assert (chain.sequence, chain.residue_names[1]) == ("GMA", "MSE")
    assert chain.atom_positions[1, ATOM_ORDER["SD"], 0] == 5


def test_the_selenium_of_selenocysteine_is_no_sulphur_of_methionine() -> None:
    rows = "".join(line(atom, "SEC", "   2 ", 4) for atom in (*BACKBONE, "CB"))
    selenium = f"ATOM      1 SE   SEC A   2    {5:8.3f}{0:8.3f}{0:8.3f}  1.00  5.00\n"
    chain = read(residue("GLY", "   1 ", 0), rows, selenium, residue("ALA", "   3 ", 8))
    assert chain.residue_names[1] == "SEC"
    assert not chain.atom_mask[1, ATOM_ORDER["SD"]]
    assert chain.atom_mask[1].sum() == len(BACKBONE) + 1


def test_only_the_first_model_is_read() -> None:
    model = "MODEL        {}\n{}ENDMDL\n"
    chain = read(model.format(1, strand("GLY ALA")), model.format(2, strand("TRP TRP TRP")))
    assert chain.sequence == "GA"


def test_ligands_and_water_and_nucleic_acids_are_no_chains() -> None:
    water = line("O", "HOH", " 201 ", 9, 9, "B", "HETATM")
    dna = "".join(
        line(atom, " DA", f"{k:4} ", 7.0 * k, 9, "C") for k in (1, 2, 3) for atom in ("P", "C1'", "C3'", "O3'")
    )
    structure = parse_pdb((water + dna + "TER\n" + strand("GLY ALA")).encode())
    [chain] = structure.chains
    assert (chain.name, chain.atom_mask.sum(), chain.atom_positions[1, 0, 0]) == ("A", 8, np.float32(3.6))
    assert structure.skipped == {"B": "not a polymer, only ligands or water", "C": "a polymer, but not a protein"}


@pytest.mark.parametrize("between", ["TER\n", "TER\n" + strand("TRP", chain="B") + "TER\n"])
def test_of_two_proteins_with_one_name_the_one_with_more_residues_is_read(between: str) -> None:
    structure = parse_pdb((strand("GLY ALA") + between + strand("SER ALA LYS", first=11)).encode())
    assert structure.chains[0].sequence == "SAK"
    assert "same name" in structure.skipped["A (again)"]


def test_residue_numbers_beyond_9999_go_on_in_letters() -> None:
    chain = read(residue("GLY", "9999 ", 0), residue("ALA", "A000 ", 4))
    assert chain.residue_numbers.tolist() == [9999, 10000]


def test_plddt_is_in_the_b_factors() -> None:
    chain = read(strand("GLY ALA").replace("  5.00\n", " 87.25\n"))
    assert chain.b_factors[1, ATOM_ORDER["CA"]] == 87.25


GOOD = line("N", "GLY", "   1 ", 1.0)


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        ("", "x.pdb", "there are no atoms"),
        ("HEADER\nEND\n", "x.pdb", "there are no atoms"),
        (GOOD + "REMARK\n" + GOOD.replace("1.000", "1.x00"), "x.pdb, line 3", "not coordinates: '   1.x00"),
        (GOOD + GOOD.replace("   1.000", "        "), "x.pdb, line 2", "not coordinates"),
        (GOOD + GOOD.replace("   1.000", "     nan"), "x.pdb, line 2", "not coordinates"),
        (GOOD + GOOD[:50] + "\n", "x.pdb, line 2", "not coordinates"),
        (GOOD + GOOD[:50], "x.pdb, line 2", "not coordinates"),
        (GOOD + GOOD.replace("A   1", "A  x1"), "x.pdb, line 2", "not a residue number: '  x1'"),
        (GOOD + "MODEL        1\n" + GOOD, "x.pdb", "not readable as PDB"),
    ],
)
def test_files_that_cannot_be_read_are_refused(content: str, place: str, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_pdb(content.encode(), path="x.pdb")
    assert str(refused.value).startswith(f"{place}: ")
    assert problem in str(refused.value)


def test_bytes_that_are_no_text_do_no_harm() -> None:
    content = strand("GLY ALA SER").encode().replace(b"ALA", b"AL\xff") + b"REMARK \xff\xfe\0\n"
    assert parse_pdb(content).chains[0].sequence == "GXS"


def test_more_seqres_than_memory_allows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemmi_chains, "_MAX_SEQRES", 2)
    with pytest.raises(InputError, match="more than the maximum of 2 SEQRES records"):
        read("REMARK\n", "SEQRES   1 A    1  GLY\n" * 3, strand("GLY"))
