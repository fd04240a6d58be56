"""Representations of many targets in one call are those of each prediction, under names that DeepMind's have too."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from data_pipeline.pipeline import Target
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.folding import planned
from helixfold.folding.api import predict
from helixfold.folding.options import FoldingOptions
from helixfold.folding.readout import representation
from helixfold.folding.recycling import FoldingTarget
from helixfold.folding.representations import representations
from helixfold.model.update import Executor
from helixfold.planning.estimate import NotEnoughMemoryError
from helixfold.planning.memory import MemoryOptions
from helixfold.results.prediction import representation_arrays, representation_names, write_representations
from helixfold.runtime.options import RepresentationName
from tests.parity.cases import DATA, deviation, outputs_as_deepmind, read_case

NAMES: tuple[RepresentationName, ...] = ("msa_first_row", "single", "pair", "structure")
TARGETS = [Target(name=name, sequence="MKTAYIAKQRQISFVK"[:length]) for name, length in (("a", 12), ("b", 16), ("c", 9))]
OPTIONS = FoldingOptions(num_recycles=1)
# DeepMind's names; ColabFold writes the two first ones of its choice, "single" and "pair".
DEEPMINDS = {
    "msa_first_row": "representations/msa_first_row",
    "single": "representations/single",
    "pair": "representations/pair",
    "structure": "representations/structure_module",
}


@pytest.mark.parametrize("at_once", [1, 16])
def test_each_target_has_those_of_its_own_prediction(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    fold = planned.fold

    def watched(
        model: object, preset: object, targets: Sequence[FoldingTarget], *rest: object, **named: object
    ) -> object:
        batches.append(len(targets))
        return fold(model, preset, targets, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(planned, "fold", watched)
    found = representations(TARGETS, NAMES, model="tiny", options=OPTIONS, device="cpu", targets_at_once=at_once)
    assert batches == ([3] if at_once > 1 else [1, 1, 1])
    for target, arrays in zip(TARGETS, found, strict=True):
        (alone,) = predict(target, ["tiny"], options=replace(OPTIONS, representations=NAMES), device="cpu")
        assert list(arrays) == list(NAMES)
        for name, expected in (alone.representations or {}).items():
            assert arrays[name].dtype == np.float32
            np.testing.assert_allclose(arrays[name], expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["slabs", "spilled"])
def test_every_executor_gives_them(kind: str, tmp_path: Path) -> None:
    memory = MemoryOptions(executor=kind, spill_directory=tmp_path)
    found = representations(TARGETS[:2], NAMES, model="tiny", options=OPTIONS, device="cpu", memory=memory)
    expected = representations(TARGETS[:2], NAMES, model="tiny", options=OPTIONS, device="cpu")
    for ours, theirs in zip(found, expected, strict=True):
        for name in NAMES:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-4 * np.abs(theirs[name]).max())
    with pytest.raises(NotEnoughMemoryError, match="residues need"):
        representations(TARGETS[:1], model="tiny", device="cpu", memory=MemoryOptions(memory=2**20))


@pytest.mark.parity
@pytest.mark.parametrize("case_name", ["monomer_ptm_tiny", "monomer_notempl_tiny"])
@pytest.mark.parametrize("run", [Whole(), Slabs(rows=5)], ids=["whole", "slabs"])
def test_they_are_bit_for_bit_the_arrays_that_parity_is_shown_for(
    case_name: str, run: Executor, tmp_path: Path
) -> None:
    case = read_case(DATA / case_name)
    model = case.model(tmp_path)
    with torch.no_grad():
        folded = model.fold(run, [case.batches[-1]], None)
        outputs = outputs_as_deepmind(model(run, [case.batches[-1]], None))
    for name in NAMES:
        found = representation(run, folded, name)
        np.testing.assert_array_equal(found, outputs[DEEPMINDS[name]])
        error = deviation(found, case.outputs[DEEPMINDS[name]])
        assert error <= case.tolerance(DEEPMINDS[name]), name


def test_files_of_both_formats_hold_the_same_and_damaged_ones_nothing(tmp_path: Path) -> None:
    options = replace(OPTIONS, representations=("single", "pair"), save_passes=True)
    (prediction,) = predict(TARGETS[0], ["tiny"], options=options, device="cpu")
    expected = representation_arrays(prediction)
    assert sorted(expected) == ["pair", "pass_0_pair", "pass_0_single", "passes", "single"]
    assert expected["passes"] == 1
    assert np.abs(expected["pass_0_single"] - expected["single"]).max() > 0
    for form in ("npz", "safetensors"):
        path = tmp_path / f"representations_tiny.{form}"
        write_representations(path, prediction)
        assert set(expected) <= representation_names(path) <= {*expected, "notes"}
        found = dict(np.load(path, allow_pickle=False)) if form == "npz" else load_file(path)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
        path.write_bytes(path.read_bytes()[:-30])
        assert representation_names(path) == set()
    assert representation_names(tmp_path / "missing.safetensors") == set()


def test_representations_of_the_first_pass_are_those_of_a_prediction_without_recycling() -> None:
    options = replace(OPTIONS, representations=("single",), save_passes=True)
    (both,) = predict(TARGETS[0], ["tiny"], options=options, device="cpu")
    (first,) = predict(TARGETS[0], ["tiny"], options=replace(options, num_recycles=0), device="cpu")
    assert first.pass_representations == ()
    assert first.representations is not None
    np.testing.assert_array_equal(both.pass_representations[0]["single"], first.representations["single"])
