"""What ColabFold's input code makes of files of complexes, and of its server's answers, ours makes too."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.features.complexes.alignments import EntityAlignment
from data_pipeline.features.complexes.colabfold_a3m import read_complex_a3m
from data_pipeline.features.complexes.feature_set import RESIDUE_GAP, ComplexFeatureSet
from data_pipeline.features.complexes.sequence_files import read_fasta_targets, read_table_targets
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.residues import GAP, MASKED
from scripts.parity.make_colabfold_cases import MODES, MULTIMER, gap_digests
from scripts.parity.make_pairing_cases import array_digest
from tests.parity.colabfold_inputs import ALIGNMENTS, SEQUENCE_FILES, alignment_text

pytestmark = pytest.mark.parity

COLABFOLD: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "colabfold.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", SEQUENCE_FILES)
def test_sequence_files_name_the_same_chains(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(SEQUENCE_FILES[name])
    tables = {".csv": ",", ".tsv": "\t"}
    found = read_table_targets(path, tables[path.suffix]) if path.suffix in tables else read_fasta_targets(path)
    chains = [[*each.sequences] if isinstance(each, ComplexTarget) else [each.sequence] for each in found]
    assert [[each.name, own] for each, own in zip(found, chains, strict=True)] == [
        [title.split()[0], expected] for title, expected in COLABFOLD["queries"][name]
    ]


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_features_of_alignments_are_colabfolds(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(alignment_text(name))
    expected = COLABFOLD["features"][name]
    alignment = read_complex_a3m(path)
    assert [each.sequence for each in alignment.entities] == expected["sequences"]
    assert [*alignment.copies] == expected["copies"]
    target = alignment.target("x")
    assert expected["is_complex"] == (len(target.sequences) > 1)
    for mode in [mode for mode in MODES if f"multimer {mode}" in expected]:
        made = ComplexFeatureSet.of(target, alignment.entities, mode)  # type: ignore[arg-type]
        digests = {each: array_digest(getattr(made.multimer, each)) for each in MULTIMER}
        assert digests == expected[f"multimer {mode}"], mode
        gapped = made.residue_gap
        own = gap_digests(gapped.msa, gapped.deletion_matrix, without_gaps(made), made.multimer.asym_id)
        assert own == expected[f"residue gap {mode}"], mode


def without_gaps(made: ComplexFeatureSet) -> np.ndarray:
    """Residue numbers from 0 in each chain, which ColabFold keeps beside the chains' numbers."""
    index, asym_id = made.residue_gap.residue_index, made.multimer.asym_id
    starts = np.array([index[asym_id == chain][0] for chain in np.unique(asym_id)])
    assert (np.diff(index)[np.diff(asym_id) > 0] == RESIDUE_GAP + 1).all()
    return index - starts[asym_id - 1]


def answers(data: Path, name: str) -> list[list[bytes]]:
    """The stored answers of ColabFold's server: of each query, an a3m for each sequence."""
    with gzip.open(data / "colabfold" / f"server_answers__{name}.json.gz") as file:
        return [["\n".join(lines).encode() for lines in each["response"]] for each in json.load(file)]


def test_a_homodimers_features_are_those_that_colabfold_handed_to_the_network(real_data: Path) -> None:
    ((answer,),) = answers(real_data, "complex_monomer")
    unpaired = parse_a3m(answer)
    sequence = unpaired.query
    entity = EntityAlignment(sequence=sequence, unpaired=unpaired, paired=parse_a3m(f">q\n{sequence}\n".encode()))
    features = ComplexFeatureSet.of(ComplexTarget.of("A_A", (sequence, sequence)), [entity]).multimer
    with np.load(real_data / "colabfold" / "complex_monomer__A_A_features.npz") as stored:
        for name in ("aatype", "residue_index", "sym_id", "entity_id", "msa", "deletion_matrix", "bert_mask"):
            np.testing.assert_array_equal(getattr(features, name), stored[name], err_msg=name)
        # Counted from 0 just before the network reads it.
        np.testing.assert_array_equal(features.asym_id - 1, stored["asym_id"])
        np.testing.assert_array_equal(features.template_aatype, stored["template_aatype"])
        np.testing.assert_array_equal(features.template_all_atom_masks, stored["template_all_atom_mask"])
    assert features.msa.shape == (2048, 118)


def test_a_heterodimers_rows_by_residue_index_gap_are_among_ours(real_data: Path) -> None:
    unpaired, paired = ([parse_a3m(each) for each in answer] for answer in answers(real_data, "complex"))
    entities = [
        EntityAlignment(sequence=alone.query, unpaired=alone, paired=pairs)
        for alone, pairs in zip(unpaired, paired, strict=True)
    ]
    target = ComplexTarget.of("3G5O", [each.sequence for each in entities])
    made = ComplexFeatureSet.of(target, entities)
    ours = {row.tobytes() for row in made.residue_gap.msa.astype(np.int32)}
    with np.load(real_data / "colabfold" / "complex_ptm__3G5O_A_3G5O_B_features.npz") as stored:
        np.testing.assert_array_equal(without_gaps(made), stored["residue_index"][0])
        np.testing.assert_array_equal(made.multimer.asym_id - 1, stored["asym_id"][0])
        np.testing.assert_array_equal(made.residue_gap.aatype, stored["aatype"][0])
        drawn = np.concatenate([stored["true_msa"], stored["extra_msa"]], axis=1)
        deletions = stored["extra_deletion_value"]
    assert drawn.max() < MASKED
    assert all(row.tobytes() in ours for row in drawn.reshape(-1, 180))
    # Each pass holds all pairs or some, and rows of both chains.
    pairs = {
        row.tobytes()
        for row in made.residue_gap.msa.astype(np.int32)
        if (row[:93] != GAP).any() and (row[93:] != GAP).any()
    }
    assert len(pairs) == 14
    values = np.unique(np.arctan(made.residue_gap.deletion_matrix / np.float32(3)) * np.float32(2 / np.pi))
    np.testing.assert_allclose(
        values[np.searchsorted(values, np.unique(deletions) - 1e-6)], np.unique(deletions), atol=1e-6
    )
