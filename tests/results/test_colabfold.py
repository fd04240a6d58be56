"""Files under ColabFold's names hold what the target's own files hold, for the right rank, chain and residue."""

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from Bio import SeqIO

from data_pipeline.residues import RESTYPES_WITH_X_AND_GAP
from helixfold import __version__
from helixfold.folding.prediction import Prediction
from helixfold.results.colabfold import done_file, model_type, write_colabfold, write_log, write_run
from helixfold.results.prediction import ranked, read_finished, write_prediction
from tests.data_pipeline.sampling.samples import random_features
from tests.support import special_complex
from tests.support.complex_targets import ROWS, feature_set

MODELS = {"model_1_multimer_v3": 0.3, "model_4_multimer_v3_seed_12": 0.8, "model_2_multimer_v3": 0.5}
RANKS = {
    1: ("model_4_multimer_v3_seed_12", "alphafold2_multimer_v3_model_4_seed_012"),
    2: ("model_2_multimer_v3", "alphafold2_multimer_v3_model_2_seed_000"),
    3: ("model_1_multimer_v3", "alphafold2_multimer_v3_model_1_seed_000"),
}


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Prediction]]:
    """Predictions of the special complex, best first; each has its own values, and the last one is relaxed, too."""
    directory = tmp_path_factory.mktemp("predicted") / "T 1"
    for place, (model, confidence) in enumerate(MODELS.items()):
        write_prediction(
            directory,
            special_complex.prediction(
                model,
                structure=special_complex.protein(moved=float(place)),
                plddt=np.roll(special_complex.prediction().plddt, place),
                pae=np.roll(special_complex.pae(), place, axis=1),
                ptm=0.204 + place / 8,
                iptm=0.106 + place / 8,
                ranking_confidence=confidence,
                notes=("a note",) if place == 1 else (),
            ),
        )
    (directory / "relaxed_model_1_multimer_v3.pdb").write_text("relaxed")
    order = ranked([each for model in MODELS if (each := read_finished(directory, model)) is not None])
    return directory, order


Predicted = tuple[Path, list[Prediction]]


@pytest.fixture
def target(predicted: Predicted, tmp_path: Path) -> Path:
    """A copy of their directory."""
    return Path(shutil.copytree(predicted[0], tmp_path / "T 1"))


def test_each_rank_has_the_structure_and_the_scores_of_its_prediction(
    predicted: Predicted, target: Path, tmp_path: Path
) -> None:
    _, order = predicted
    origins = {name: (name.split("_seed_")[0], 12 if "seed" in name else 0) for name in MODELS}
    write_colabfold(target, feature_set("ABA"), order, origins)
    for rank, (model, words) in RANKS.items():
        tag = f"rank_{rank:03d}_{words}"
        own = (target / f"unrelaxed_{model}.pdb").read_bytes()
        assert (tmp_path / f"T_1_unrelaxed_{tag}.pdb").read_bytes() == own
        assert (tmp_path / f"T_1_relaxed_{tag}.pdb").is_file() == (rank == 3)
        place = list(MODELS).index(model)
        scores = json.loads((tmp_path / f"T_1_scores_{tag}.json").read_text())
        plddt = [residue.plddt for residue in special_complex.residues()]
        pae = [[round(float(special_complex.pae()[i, j - place]), 2) for j in range(26)] for i in range(26)]
        assert scores == {
            "plddt": [plddt[residue - place] for residue in range(26)],
            "max_pae": max(map(max, pae)),
            "pae": pae,
            "ptm": round(0.204 + place / 8, 2),
            "iptm": round(0.106 + place / 8, 2),
            **({"notes": ["a note"]} if place == 1 else {}),
        }
        if rank == 1:
            errors = json.loads((tmp_path / "T_1_predicted_aligned_error_v1.json").read_text())
            assert errors == {"predicted_aligned_error": pae, "max_predicted_aligned_error": scores["max_pae"]}
    lines = re.findall(r"(rank_\d+)\S+ pLDDT=(\S+) pTM=(\S+) ipTM=(\S+)", (tmp_path / "log.txt").read_text())
    mean = f"{np.mean([residue.plddt for residue in special_complex.residues()]):.3g}"
    assert lines == [
        ("rank_001", mean, "0.329", "0.231"),
        ("rank_002", mean, "0.454", "0.356"),
        ("rank_003", mean, "0.204", "0.106"),
    ]
    assert "Query: T_1 (length 24)" in (tmp_path / "log.txt").read_text()
    others = {"T 1", "log.txt", "T_1.a3m", "T_1.done.txt", "T_1_predicted_aligned_error_v1.json"}
    names = {path.name for path in tmp_path.iterdir()} - others
    assert names == {
        *(f"T_1_scores_rank_{rank:03d}_{words}.json" for rank, (_, words) in RANKS.items()),
        *(f"T_1_unrelaxed_rank_{rank:03d}_{words}.pdb" for rank, (_, words) in RANKS.items()),
        f"T_1_relaxed_rank_003_{RANKS[3][1]}.pdb",
    }


def test_the_alignment_of_a_complex_has_the_columns_of_each_sequence_once(
    predicted: Predicted, target: Path, tmp_path: Path
) -> None:
    """Read by Biopython: chains A, B, A of two sequences, whose rows are those of the first copies."""
    features = feature_set("ABA")
    write_colabfold(target, features, predicted[1], {name: (name, 0) for name in MODELS})
    first, rest = (tmp_path / "T_1.a3m").read_text().split("\n", 1)
    records = list(SeqIO.parse(io.StringIO(rest), "fasta"))
    sequences = list(dict.fromkeys(features.chain_sequences))
    assert sorted(sequences) == sorted(ROWS)
    copies = [features.chain_sequences.count(sequence) for sequence in sequences]
    assert first == f"#8,8\t{copies[0]},{copies[1]}"
    assert records[0].description == "101\t102"
    assert str(records[0].seq) == "".join(sequences)
    # The place of the first copy of each sequence among all chains.
    starts = [8 * features.chain_sequences.index(sequence) for sequence in sequences]
    letters = [
        "".join(RESTYPES_WITH_X_AND_GAP[row[start + column]] for start in starts for column in range(8))
        for row in features.multimer.msa.tolist()
    ]
    assert [str(record.seq) for record in records[1:]] == letters[1:]
    assert [record.id for record in records[1:]] == [str(number) for number in range(103, 102 + len(letters))]


def test_the_alignment_of_a_chain_has_all_rows(predicted: Predicted, target: Path, tmp_path: Path) -> None:
    features = random_features(4, 26)
    write_colabfold(target, features, predicted[1], {name: (name, 0) for name in MODELS})
    first, rest = (tmp_path / "T_1.a3m").read_text().split("\n", 1)
    records = list(SeqIO.parse(io.StringIO(rest), "fasta"))
    assert first == "#26\t1"
    assert [record.id for record in records] == ["101", "102", "103", "104"]
    expected = ["".join(RESTYPES_WITH_X_AND_GAP[kind] for kind in row) for row in features.msa.tolist()]
    assert [str(record.seq) for record in records] == [features.sequence, *expected[1:]]


def test_files_of_an_earlier_run_are_removed_and_those_of_other_targets_stay(
    predicted: Predicted, target: Path, tmp_path: Path
) -> None:
    tag = "rank_004_alphafold2_model_1_seed_000"
    old = [f"T_1_{kind}_{tag}.{end}" for kind, end in (("unrelaxed", "pdb"), ("relaxed", "pdb"), ("scores", "json"))]
    kept = [f"U_{old[0]}", f"T_1_{tag}.pdb", f"T_1_unrelaxed_{tag}.txt"]
    for name in (*old, *kept, "T_1_pae.png"):
        (tmp_path / name).touch()
    (target / "plddt.png").write_bytes(b"a plot")
    write_colabfold(target, feature_set("ABA"), predicted[1], {name: (name, 0) for name in MODELS})
    assert not any((tmp_path / name).exists() for name in (*old, "T_1_pae.png"))
    assert all((tmp_path / name).exists() for name in kept)
    assert (tmp_path / "T_1_plddt.png").read_bytes() == b"a plot"
    assert done_file(target).read_text() == ""
    assert "reranking models by 'multimer' metric" in (tmp_path / "log.txt").read_text()


def test_a_target_is_finished_last_and_not_while_its_files_are_written(
    predicted: Predicted, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done_file(target).touch()
    monkeypatch.setattr("helixfold.results.colabfold._a3m", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_colabfold(target, feature_set("ABA"), predicted[1], {name: (name, 0) for name in MODELS})
    assert not done_file(target).exists()


def test_kinds_of_models_have_colabfolds_names() -> None:
    assert {
        name: model_type(name) for name in ("model_1", "model_3_ptm", "model_2_multimer", "model_5_multimer_v2")
    } == {
        **{"model_1": "alphafold2", "model_3_ptm": "alphafold2_ptm"},
        **{"model_2_multimer": "alphafold2_multimer_v1", "model_5_multimer_v2": "alphafold2_multimer_v2"},
    }
    assert [model_type(name) for name in ("model_6", "tiny", "model_1_ptm_x")] == ["helixfold"] * 3


def test_a_run_has_its_settings_the_works_to_cite_and_a_log(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "log.txt").symlink_to(tmp_path / "elsewhere")
    write_run(tmp_path, {"num_recycles": 3}, ["alphafold", "openmm"])
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "num_recycles": 3,
        "version": f"helixfold {__version__}",
    }
    works = (tmp_path / "cite.bibtex").read_text()
    assert re.findall(r"@article\{(\w+),", works) == ["Jumper2021", "Eastman2017"]
    assert "journal = {Nature},\nyear = {2021},\ndoi = {10.1038/s41586-021-03819-2},\n}\n" in works
    # The log is not written through a link, and goes on.
    write_log(tmp_path, "one", "two")
    assert (tmp_path / "elsewhere").read_text() == "mine"
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [re.sub(r"^\d{4}(-\d\d){2} \d\d:\d\d:\d\d,\d{3} ", "", line) for line in lines] == [
        f"Running helixfold {__version__}",
        "one",
        "two",
    ]
