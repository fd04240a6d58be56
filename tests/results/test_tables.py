"""Tables are what nf-core/proteinfold's programs make of AlphaFold's output, and say what they can of notes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from helixfold.results.prediction import ranked, read_finished, write_prediction
from helixfold.results.tables import msa_table, write_tables
from tests.results.proteins import random_protein
from tests.results.test_prediction import NOTE, names, prediction
from tests.support import special_complex


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
    chains = {"structure": random_protein(12, chains=3), "chain_ids": ("H", "L", "A"), "iptm": 0.4, "tm_by_chain": tm}
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


def special_target(directory: Path) -> list[str]:
    """Three predictions of the special complex with their own confidences; their names, best first."""
    plddt = special_complex.prediction().plddt
    for place, (name, confidence) in enumerate((("m_1", 0.3), ("m_2", 0.8), ("m_3", 0.5))):
        write_prediction(
            directory,
            special_complex.prediction(
                name,
                ranking_confidence=confidence,
                ptm=0.2 + place / 8,
                plddt=np.roll(plddt, place),
                pae=np.roll(special_complex.pae(), place, axis=1),
                tm_by_chain=special_complex.TM_BY_CHAIN - place / 100,
            ),
        )
    order = ranked([each for name in ("m_1", "m_2", "m_3") if (each := read_finished(directory, name)) is not None])
    write_tables(directory, order)
    return [each.name for each in order]


def test_every_value_of_a_special_complexs_tables_is_at_its_rank_and_residue(tmp_path: Path) -> None:
    assert special_target(tmp_path / "T1") == ["m_2", "m_3", "m_1"]
    shifts = [1, 2, 0]
    plddt = [residue.plddt for residue in special_complex.residues()]
    found = rows(tmp_path / "T1" / "T1_plddt.tsv")
    assert found[0] == ["Positions", "rank_0", "rank_1", "rank_2"]
    expected = [[str(place), *(f"{plddt[place - shift]:.2f}" for shift in shifts)] for place in range(26)]
    assert found[1:] == expected
    assert rows(tmp_path / "T1" / "T1_ptm.tsv") == [["0", "0.325"], ["1", "0.450"], ["2", "0.200"]]
    pae = rows(tmp_path / "T1" / "T1_0_pae.tsv")
    assert pae == [[f"{special_complex.pae()[i, j - 1]:.1f}" for j in range(26)] for i in range(26)]


def test_every_column_of_a_special_complexs_interfaces_is_that_of_its_confidence_file(tmp_path: Path) -> None:
    order = special_target(tmp_path / "T1")
    header, *lines = rows(tmp_path / "T1" / "T1_interfaces.tsv")
    found = [dict(zip(header, line, strict=True)) for line in lines]
    expected = [
        {
            "rank": str(rank),
            "prediction": name,
            "chain_1": pair["chains"][0],
            "chain_2": pair["chains"][1],
            **{key: "NA" if pair[key] is None else str(pair[key]) for key in header[4:-1]},
            "notes": "",
        }
        for rank, name in enumerate(order)
        for pair in json.loads((tmp_path / "T1" / f"confidence_{name}.json").read_text())["interfaces"]
    ]
    assert found == expected
    assert len(found) == 18
    columns = "iptm ipsae pdockq pdockq2 lis interface_plddt interface_pae contacts"
    assert header[4:-1] == columns.split()
    assert [line["iptm"] for line in found[:6]] == ["0.51", "0.38", "0.18", "0.6", "0.07", "0.27"]
