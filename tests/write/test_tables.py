"""Tables are what nf-core/proteinfold's programs make of AlphaFold's output, and say what they can of notes."""

import csv
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from helixfold.write.ranking import ranked, read_finished
from helixfold.write.results import write_prediction
from helixfold.write.tables import msa_table, write_tables
from tests.write.proteins import random_protein
from tests.write.test_results import NOTE, names, prediction


def written(directory: Path, **values: object) -> Path:
    models = ["model_1_ptm", "model_2_ptm"]
    for index, model in enumerate(models):
        write_prediction(directory, prediction(model, confidence=50.0 + index, seed=index, **values))
    write_tables(directory, ranked([each for name in models if (each := read_finished(directory, name)) is not None]))
    return directory


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter="\t"))


def test_plddt_has_a_column_for_each_rank_and_positions_from_0(tmp_path: Path) -> None:
    found = rows(written(tmp_path / "T1", notes=()) / "T1_plddt.tsv")
    assert found[0] == ["Positions", "rank_0", "rank_1"]
    assert [row[0] for row in found[1:]] == [str(position) for position in range(12)]
    best, other = (prediction(seed=seed).plddt for seed in (1, 0))
    np.testing.assert_allclose(np.array(found[1:], float)[:, 1:], np.stack([best, other], 1), atol=0.006)


def test_ptm_has_two_columns_and_no_header(tmp_path: Path) -> None:
    assert rows(written(tmp_path / "T1", notes=()) / "T1_ptm.tsv") == [["0", "0.432"], ["1", "0.432"]]


def test_pae_of_the_best_is_a_matrix_that_numpy_reads(tmp_path: Path) -> None:
    for notes in ((), (NOTE, "two")):
        found = np.genfromtxt(written(tmp_path / "T1", notes=notes) / "T1_0_pae.tsv", delimiter="\t")
        np.testing.assert_allclose(found, prediction(seed=1).pae, atol=0.0501)


def test_notes_are_where_readers_pass_over_them_or_the_table_is_left_out(tmp_path: Path) -> None:
    written(tmp_path / "T1", notes=())
    target = written(tmp_path / "T1", notes=("tab\tand\nline", NOTE))
    found = rows(target / "T1_plddt.tsv")
    assert found[0] == ["Positions", "rank_0", "rank_1", "notes"]
    assert found[1][3] == f"tab and line {NOTE}"
    assert {row[3] for row in found[2:]} == {""}
    assert (target / "T1_0_pae.tsv").read_text().startswith(f"# tab and line\n# {NOTE}\n")
    assert "T1_ptm.tsv" not in names(target)


def test_models_without_pae_have_no_tables_of_it_nor_keep_old_ones(tmp_path: Path) -> None:
    target = written(tmp_path / "T1", notes=())
    assert {"T1_ptm.tsv", "T1_0_pae.tsv"} <= names(target)
    written(target, notes=(), pae=None, max_pae=None, ptm=None)
    assert {"T1_plddt.tsv"} == {name for name in names(target) if name.endswith(".tsv")}


def test_the_alignment_is_in_the_alphabets_order(tmp_path: Path) -> None:
    msa = np.array([[RESTYPES.index(letter) for letter in "ACWY"], [UNKNOWN, GAP, GAP, 0]], np.int8)
    path = tmp_path / "T1_msa.tsv"
    path.write_bytes(b"".join(msa_table(msa)))
    np.testing.assert_array_equal(np.loadtxt(path, dtype=int), [[0, 1, 18, 19], [20, 21, 21, 0]])


@pytest.mark.parametrize("letter", RESTYPES)
def test_every_letter_has_its_number(letter: str) -> None:
    (line,) = msa_table(np.array([[RESTYPES.index(letter)]], np.int8))
    assert int(line) == sorted(RESTYPES).index(letter)


def test_each_pair_of_chains_has_a_line_in_a_table_of_interfaces(tmp_path: Path) -> None:
    tm = np.full((3, 3), 0.25)
    tm[2, 0] = 0.75
    chains = {"protein": random_protein(12, chains=3), "chain_ids": ("H", "L", "A"), "iptm": 0.4, "tm_by_chain": tm}
    lines = rows(written(tmp_path / "T1", **chains) / "T1_interfaces.tsv")
    assert lines[0][:6] == ["rank", "prediction", "chain_1", "chain_2", "iptm", "ipsae"]
    assert [line[:5] for line in lines[1:4]] == [
        ["0", "model_2_ptm", "H", "L", "0.25"],
        ["0", "model_2_ptm", "H", "A", "0.75"],
        ["0", "model_2_ptm", "L", "A", "0.25"],
    ]
    assert [line[1] for line in lines[4:]] == ["model_1_ptm"] * 3
    assert {line[-1] for line in lines[1:]} == {NOTE}
    written(tmp_path / "T1")
    assert not (tmp_path / "T1" / "T1_interfaces.tsv").exists()
