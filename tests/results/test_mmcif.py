"""mmCIF files are read back by gemmi, Biopython and modelcif, whatever the names and notes contain."""

import dataclasses
import io
import warnings
from pathlib import Path
from typing import Any

import gemmi
import modelcif.qa_metric
import modelcif.reader
import numpy as np
import pytest
from Bio.PDB import MMCIFParser
from Bio.PDB.MMCIF2Dict import MMCIF2Dict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_pipeline import residues
from data_pipeline.protein import Protein
from helixfold import __version__
from helixfold.results.mmcif import ModelScores, to_mmcif
from helixfold.results.pdb import plain_text
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
from tests.support.residue_arrays import RESIDUE_ARRAYS


def write(protein: Protein, **given: Any) -> str:
    return to_mmcif(protein, **{"name": "T1", "model": "model_1_ptm", **given})


def read(text: str) -> gemmi.Structure:
    return gemmi.make_structure_from_block(gemmi.cif.read_string(text).sole_block())


def value(text: str, tag: str) -> str:
    return gemmi.cif.as_string(gemmi.cif.read_string(text).sole_block().find_value(tag))


def read_metrics(text: str, kind: type) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (system,) = modelcif.reader.read(io.StringIO(text))
    return [metric for metric in system.model_groups[0][0].qa_metrics if isinstance(metric, kind)]


@settings(max_examples=30, deadline=None)
@given(proteins())
def test_any_structure_is_read_back(protein: Protein) -> None:
    text = write(protein)
    structure = read(text)
    assert_same_atoms(atoms_by_gemmi(structure), expected_atoms(protein))
    assert_same_atoms(atoms_by_biopython(MMCIFParser(), text), expected_atoms(protein))
    sequences = {chain: entity.full_sequence for entity in structure.entities for chain in entity.subchains}
    assert sequences == expected_sequences(protein)


def test_a_real_structure_is_read_back(real_data: Path) -> None:
    protein = real_protein(real_data / "core" / "1crn.cif.gz")
    text = write(protein)
    assert_same_atoms(atoms_by_gemmi(read(text)), expected_atoms(protein))
    assert_same_atoms(atoms_by_biopython(MMCIFParser(), text), expected_atoms(protein))


def test_residues_are_numbered_from_one_and_keep_their_own_numbers() -> None:
    protein = random_protein(4)
    text = write(dataclasses.replace(protein, residue_index=np.array([7, 8, 11, 12])))
    residues = list(read(text)[0]["A"])
    assert [(residue.label_seq, residue.seqid.num) for residue in residues] == [(1, 7), (2, 8), (3, 11), (4, 12)]


def test_unknown_residues_stand_in_the_sequence_without_atoms() -> None:
    protein = random_protein(5, unknown=(2,))
    text = write(protein)
    table = MMCIF2Dict(io.StringIO(text))
    assert table["_entity_poly_seq.mon_id"] == expected_sequences(protein)["A"]
    assert table["_entity_poly.pdbx_seq_one_letter_code_can"][0][2] == "X"
    assert "UNK" not in table["_atom_site.label_comp_id"]
    assert table["_pdbx_poly_seq_scheme.auth_seq_num"] == ["1", "2", "?", "4", "5"]


def test_equal_chains_are_one_entity() -> None:
    once = random_protein(6)
    twice = {name: np.concatenate([getattr(once, name)] * 2) for name in RESIDUE_ARRAYS} | {
        "chain_index": np.repeat([0, 1], 6)
    }
    structure = read(write(Protein(**twice)))
    assert [entity.subchains for entity in structure.entities] == [["A", "B"]]


def six_chains() -> Protein:
    """Chains of three sequences in the order a, b, a, c, b, a, of which b lacks the atoms of an unknown residue."""
    parts = [random_protein(length, unknown=gaps, seed=length) for length, gaps in ((7, ()), (5, (2,)), (4, ()))]
    order = [parts[number] for number in (0, 1, 0, 2, 1, 0)]
    fields = {name: np.concatenate([getattr(one, name) for one in order]) for name in RESIDUE_ARRAYS}
    return Protein(**{**fields, "chain_index": np.repeat(np.arange(6), [len(one.aatype) for one in order])})


SIX_NAMES = ("H1", "L", "A", "long", "z", "9")


def test_six_chains_of_three_sequences_are_read_back_with_their_names() -> None:
    protein = six_chains()
    text = write(protein, chain_ids=SIX_NAMES)
    sequences = [[residues.THREE_LETTER[kind] for kind in protein.aatype[protein.chain_index == n]] for n in range(6)]
    structure = read(text)
    assert [chain.name for chain in structure[0]] == list(SIX_NAMES)
    assert [entity.subchains for entity in structure.entities] == [["H1", "A", "9"], ["L", "z"], ["long"]]
    assert [entity.full_sequence for entity in structure.entities] == [sequences[0], sequences[1], sequences[3]]
    parser = MMCIFParser(QUIET=True)
    by_biopython = parser.get_structure("x", io.StringIO(text))[0]
    assert [chain.id for chain in by_biopython] == list(SIX_NAMES)
    assert [[residue.resname for residue in chain] for chain in by_biopython] == [
        [name for name in sequence if name != "UNK"] for sequence in sequences
    ]
    table = MMCIF2Dict(io.StringIO(text))
    assert table["_struct_asym.id"] == list(SIX_NAMES)
    assert table["_struct_asym.entity_id"] == ["1", "2", "1", "3", "2", "1"]
    assert table["_entity.pdbx_number_of_molecules"] == ["3", "2", "1"]
    assert list(dict.fromkeys(table["_atom_site.auth_asym_id"])) == list(SIX_NAMES)


def test_chains_beyond_those_of_a_pdb_file_are_written() -> None:
    structure = read(write(random_protein(80, chains=80)))
    assert [chain.name for chain in structure[0]][59:64] == ["7", "8", "9", "AA", "BA"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("A", "A"), "two chains have the ID 'A'"),
        (("A", "B C"), "a chain ID must be .*, got 'B C'"),
        (("A", ""), "a chain ID must be .*, got ''"),
        (("A",), "chain_index must be 0 to 0, got 0 to 1"),
    ],
)
def test_names_that_are_no_chain_ids_are_refused(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write(random_protein(4, chains=2), chain_ids=names)


def test_confidence_is_read_back() -> None:
    protein = random_protein(5, unknown=(2,))
    plddt = np.array([91.234, 80, 33.333, 70, 60])
    text = write(protein, scores=ModelScores(plddt=plddt))
    (mean,) = read_metrics(text, modelcif.qa_metric.Global)
    assert mean.type == "pLDDT"
    assert mean.value == pytest.approx(plddt.mean(), abs=0.005)
    local = read_metrics(text, modelcif.qa_metric.Local)
    # The third residue has no atoms.
    assert [metric.residue.seq_id for metric in local] == [1, 2, 4, 5]
    assert [metric.value for metric in local] == pytest.approx([91.234, 80, 70, 60], abs=0.005)
    assert {metric.type for metric in local} == {"pLDDT"}


def test_confidence_comes_from_the_b_factors_of_residues_with_atoms_if_not_given() -> None:
    protein = random_protein(5, unknown=(2,))
    text = write(protein)
    local = {metric.residue.seq_id: metric.value for metric in read_metrics(text, modelcif.qa_metric.Local)}
    expected = {place + 1: protein.b_factors[place, 1] for place in (0, 1, 3, 4)}
    assert local == pytest.approx(expected, abs=0.005)
    (mean,) = read_metrics(text, modelcif.qa_metric.Global)
    assert mean.value == pytest.approx(np.mean(list(expected.values())), abs=0.005)


def test_the_file_says_how_the_model_came_about() -> None:
    text = write(random_protein(3), name="T1034", notes=["untrained demonstration parameters"])
    table = MMCIF2Dict(io.StringIO(text))
    assert table["_struct.title"] == ["T1034"]
    assert table["_struct.pdbx_structure_determination_methodology"] == ["computational"]
    assert (table["_software.name"], table["_software.version"]) == (["helixfold"], [__version__])
    assert table["_ma_model_list.model_name"] == ["model_1_ptm"]
    assert table["_ma_protocol_step.method_type"] == ["modeling"]
    assert "untrained demonstration parameters" in table["_ma_protocol_step.details"][0]
    assert value(text, "_struct.pdbx_model_details").strip() == "untrained demonstration parameters"


awkward = st.text() | st.sampled_from(
    ["loop_", "data_x", "LOOP_1", "#", ";", 'it\'s "so" \' "', ".", "?", "_x", "$a", "a;\n;b"]
)


@settings(max_examples=60, deadline=None)
@example(name="DATA_x", model="LOOP_", notes=["SAVE_x"])
@given(name=awkward, model=awkward, notes=st.lists(awkward, max_size=3))
def test_no_name_or_note_can_break_the_file(name: str, model: str, notes: list[str]) -> None:
    protein = random_protein(2)
    text = to_mmcif(protein, name=name, model=model, notes=notes)
    assert text.isascii()
    assert_same_atoms(atoms_by_gemmi(read(text)), expected_atoms(protein))
    assert "".join(value(text, "_struct.title").split()) == plain_text(name).replace(" ", "")
    assert "".join(value(text, "_ma_model_list.model_name").split()) == plain_text(model).replace(" ", "")
    if notes:
        details = "".join(value(text, "_struct.pdbx_model_details").split())
        assert details == "".join(plain_text(note) for note in notes).replace(" ", "")


def test_lines_keep_to_the_length_that_cif_allows() -> None:
    text = write(random_protein(3000, unknown=tuple(range(0, 3000, 7))), notes=["x" * 5000])
    assert max(len(line) for line in text.splitlines()) <= 2048
    assert len(read(text).entities[0].full_sequence) == 3000


def test_coordinates_too_large_for_a_pdb_file_are_kept() -> None:
    protein = random_protein(2)
    protein = dataclasses.replace(protein, atom_positions=protein.atom_positions - 20_000)
    assert_same_atoms(atoms_by_gemmi(read(write(protein))), expected_atoms(protein))


def test_coordinates_that_are_not_finite_are_refused() -> None:
    protein = random_protein(2)
    with pytest.raises(ValueError, match="coordinates must be finite"):
        write(dataclasses.replace(protein, atom_positions=protein.atom_positions * np.nan))
