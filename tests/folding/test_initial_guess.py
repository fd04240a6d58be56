"""Recycling starts from a structure: its atoms in the target's order, and a pass that takes them for its own."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target, prepare
from data_pipeline.residues import ATOM_ORDER
from helixfold.apps.predict.jobs import STRUCTURE_SUFFIXES, file_of_target
from helixfold.cli.main import main
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding.api import predict
from helixfold.folding.initial_guess import guessed_positions
from helixfold.folding.model_input import draw, model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget, fold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Recycled
from helixfold.model.presets import tiny
from helixfold.model.update import Executor
from tests.data_pipeline.training_sets.training_files import write_pdb
from tests.support.complex_targets import feature_set
from tests.support.folding import fold_one
from tests.support.networks import tiny_model

SEQUENCE = "MKTAYIAKQRQISFVKSHFS"
PRESET = replace(tiny(), model=tiny_model().config)
FEATURES = prepare(Target(name="target", sequence=SEQUENCE)).features
GUESS = np.random.default_rng(0).normal(0, 10, (len(SEQUENCE), 37, 3)).astype(np.float32)
ALPHA, BETA = ATOM_ORDER["CA"], ATOM_ORDER["CB"]


def folded(run: Executor, recycles: int = 0, guess: np.ndarray | None = GUESS) -> Prediction:
    options = FoldingOptions(num_recycles=recycles)
    return fold_one(tiny_model(), run, FEATURES, PRESET, options, initial_guess=guess)


def atoms(prediction: Prediction) -> np.ndarray:
    return prediction.protein.atom_positions


def test_the_first_pass_recycles_the_atoms_and_nothing_else() -> None:
    model, length = tiny_model(), len(SEQUENCE)
    given = Recycled(
        msa_first_row=torch.zeros(1, length, PRESET.model.evoformer.c_m),
        pair=torch.zeros(1, length, length, PRESET.model.c_z),
        positions=torch.from_numpy(GUESS)[None],
    )
    sample = draw(model_input(FEATURES, PRESET), PRESET, [0, 0, 0])
    with torch.no_grad():
        expected = model.fold(Whole(), [Batch.from_samples([sample])], given).structure.positions[0].numpy()
    found = atoms(folded(Whole()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.abs(found - atoms(folded(Whole(), guess=None))).max() > 0.1


@pytest.mark.parametrize("kind", ["slabs", "spilled"])
def test_every_executor_starts_from_it(kind: str, tmp_path: Path) -> None:
    run = Slabs(rows=4) if kind == "slabs" else Spilled(tmp_path, rows=4)
    np.testing.assert_allclose(atoms(folded(run, recycles=1)), atoms(folded(Whole(), recycles=1)), rtol=0, atol=1e-3)


def test_targets_that_share_passes_have_their_own() -> None:
    other = replace(prepare(Target(name="other", sequence=SEQUENCE[:15])).features)
    targets = [
        FoldingTarget(features=FEATURES, name="with", initial_guess=GUESS),
        FoldingTarget(features=other, name="without"),
    ]
    options = FoldingOptions(num_recycles=1)
    found = fold(tiny_model(), PRESET, targets, options, Whole(), stages=Stages())
    for target, prediction in zip(targets, found, strict=True):
        alone = fold_one(tiny_model(), Whole(), target.features, PRESET, options, initial_guess=target.initial_guess)
        np.testing.assert_allclose(atoms(prediction), atoms(alone), rtol=0, atol=1e-3)


def test_recycling_does_not_end_because_it_agrees_with_the_guess() -> None:
    first = atoms(folded(Whole(), guess=None))
    options = FoldingOptions(num_recycles=1, recycle_tolerance=1e3)
    found = fold_one(tiny_model(), Whole(), FEATURES, PRESET, options, initial_guess=first)
    assert found.num_recycles == 1
    assert found.converged


def test_residues_get_the_atoms_that_they_are_aligned_to(tmp_path: Path) -> None:
    write_pdb(tmp_path / "guess.pdb", "1abc", {"A": SEQUENCE[:8] + SEQUENCE[12:]})
    found = guessed_positions(tmp_path / "guess.pdb", FEATURES)
    assert found.shape == (len(SEQUENCE), 37, 3)
    # The file has residues in a row along x, without C-beta atoms.
    numbers = np.array([*range(1, 9), *range(9, 17)])
    kept = np.r_[0:8, 12:20]
    np.testing.assert_allclose(found[kept, ALPHA, 0], 3.8 * numbers, atol=1e-3)
    np.testing.assert_array_equal(found[kept, BETA], found[kept, ALPHA])
    assert not found[8:12].any()


def test_chains_of_a_complex_take_those_of_their_names(tmp_path: Path) -> None:
    # The features have both copies of the first sequence, A and C, before B.
    features = feature_set("ABA")
    assert features.multimer.chain_names == ("A", "C", "B")
    first, second = features.chain_sequences[0], features.chain_sequences[2]
    write_pdb(tmp_path / "own.pdb", "1abc", {"B": second, "C": first, "A": first})
    found = guessed_positions(tmp_path / "own.pdb", features)
    # Chains of the file lie 10 Angstrom beside each other.
    np.testing.assert_allclose(found[::8, ALPHA, 1], [20, 10, 0], atol=1e-3)
    write_pdb(tmp_path / "other.pdb", "1abc", {"X": second, "Y": first, "Z": first})
    np.testing.assert_allclose(
        guessed_positions(tmp_path / "other.pdb", features)[::8, ALPHA, 1], [10, 20, 0], atol=1e-3
    )


def test_another_protein_is_refused(tmp_path: Path) -> None:
    write_pdb(tmp_path / "other.pdb", "1abc", {"A": "GGGGGGGGPPPPGGGGGGGG"})
    with pytest.raises(InputError, match=r"other\.pdb.*no chain of the structure is similar to chain A of the target"):
        guessed_positions(tmp_path / "other.pdb", FEATURES)
    write_pdb(tmp_path / "one.pdb", "1abc", {"A": feature_set("ABA").chain_sequences[0]})
    with pytest.raises(InputError, match="is similar to chain C of the target"):
        guessed_positions(tmp_path / "one.pdb", feature_set("ABA"))


def test_files_are_found_by_target(tmp_path: Path) -> None:
    file = tmp_path / "one.cif"
    file.touch()
    assert file_of_target(file, "anything", STRUCTURE_SUFFIXES, only=True) == file
    assert file_of_target(tmp_path, "one", STRUCTURE_SUFFIXES, only=False) == file
    for path, only, problem in (
        (file, False, "is one file for several targets; pass a directory"),
        (tmp_path / "none", True, "no such file or directory"),
        (tmp_path, False, r"has no file of this target, such as two\.cif"),
    ):
        with pytest.raises(InputError, match=problem):
            file_of_target(path, "two", STRUCTURE_SUFFIXES, only=only)


def test_a_prediction_starts_from_an_earlier_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.fasta").write_text(f">one\n{SEQUENCE}\n")
    common = [str(tmp_path / "one.fasta"), "--models", "tiny", "--num-recycles", "0"]
    assert main(["predict", *common, "--output", str(tmp_path / "first")]) == 0
    structure = tmp_path / "first" / "one" / "unrelaxed_tiny.cif"
    again = ["predict", *common, "--output", str(tmp_path / "second"), "--initial-guess", str(structure)]
    assert main(again) == 0
    record = json.loads((tmp_path / "second" / "one" / "settings.json").read_text())
    assert record["inputs"]["initial guess"]["file"] == structure.name
    target = Target(name="one", sequence=SEQUENCE)
    (expected,) = predict(target, ["tiny"], options=FoldingOptions(num_recycles=0), initial_guess=structure)
    written = json.loads((tmp_path / "second" / "one" / "confidence_tiny.json").read_text())
    np.testing.assert_allclose(written["plddt"], expected.plddt, atol=0.01)
    capsys.readouterr()
    assert main(again[:-2]) == 2
    assert "finished before with other settings (another initial guess)" in capsys.readouterr().err
