"""Recycling: fresh draws, early stop, and a result that depends on the seed alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest
import torch

from data_pipeline.features.sample import Sample
from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target, prepare
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole
from helixfold.folding import recycling
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import distance_change
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Folded, Recycled
from helixfold.model.presets import tiny
from helixfold.model.update import Executor, as_tensor
from helixfold.results.prediction import write_prediction
from helixfold.weights.find import find_models
from tests.model.ptm import ptm_of
from tests.support.folding import fold_one
from tests.support.networks import tiny_model

SEQUENCE = "MKTAYIAKQRQISFVKSHFS"


def folded(seed: int = 0, alignments: tuple[Path, ...] = (), **options: object) -> Prediction:
    features = prepare(Target(name="target", sequence=SEQUENCE, alignments=alignments)).features
    return fold_one(tiny_model(), Slabs(), features, tiny(), FoldingOptions(seed=seed, num_recycles=1, **options))


def test_the_seed_decides_everything() -> None:
    assert (folded(1).protein.atom_positions == folded(1).protein.atom_positions).all()
    assert (folded(1).protein.atom_positions != folded(2).protein.atom_positions).any()


def test_the_seed_decides_what_is_dropped_out(tmp_path: Path) -> None:
    without = folded(1).protein.atom_positions
    first, second = (folded(seed, dropout=True).protein.atom_positions for seed in (1, 2))
    assert all(np.abs(one - other).max() > 0.1 for one, other in ((first, second), (first, without)))
    model = tiny_model()
    features = prepare(Target(name="target", sequence=SEQUENCE)).features
    options = FoldingOptions(seed=1, num_recycles=1, dropout=True)
    for run in (Whole(), Slabs(rows=4), Spilled(tmp_path, rows=4)):
        torch.manual_seed(7)
        before = torch.random.get_rng_state()
        made = fold_one(model, run, features, tiny(), options)
        assert not model.training
        assert (before == torch.random.get_rng_state()).all()
        np.testing.assert_allclose(made.protein.atom_positions, first, rtol=0, atol=1e-2)


def test_structures_of_all_passes_are_kept_if_they_are_asked_for(tmp_path: Path) -> None:
    assert folded().recycling_iterations is None
    made = folded(save_passes=True)
    assert made.recycling_iterations is not None
    assert len(made.recycling_iterations) == 2
    assert made.recycling_iterations[-1] is made.structure
    with pytest.warns(DeprecationWarning, match=r"Prediction\.passes is Prediction\.recycling_iterations\[:-1\] now"):
        assert made.passes == made.recycling_iterations[:-1]
    features = prepare(Target(name="target", sequence=SEQUENCE)).features
    first = fold_one(tiny_model(), Slabs(), features, tiny(), FoldingOptions(num_recycles=0)).protein
    assert (made.recycling_iterations[0].atom_positions == first.atom_positions).all()
    assert (made.recycling_iterations[0].b_factors == first.b_factors).all()
    write_prediction(tmp_path, made)
    models = gemmi.read_structure(str(tmp_path / f"recycles_{made.model}.pdb"))
    assert len(models) == 2
    found, last = (np.array([cra.atom.pos.tolist() for cra in model.all()]) for model in models)
    np.testing.assert_allclose(last, made.protein.atom_positions[made.protein.atom_mask > 0.5], atol=1e-3)
    # Superposed, and not as it was predicted.
    assert np.abs(found.mean(0) - last.mean(0)).max() < 1.0
    assert np.abs(found - made.recycling_iterations[0].atom_positions[made.protein.atom_mask > 0.5]).max() > 0.01


def test_representations_are_those_of_the_last_pass(tmp_path: Path) -> None:
    assert folded().representations is None
    whole = fold_one(
        tiny_model(),
        Whole(),
        prepare(Target(name="target", sequence=SEQUENCE)).features,
        tiny(),
        FoldingOptions(num_recycles=1, representations=("pair", "single", "structure", "msa_first_row")),
    )
    made = whole.representations
    assert made is not None
    config, length = tiny().model, len(SEQUENCE)
    assert {name: array.shape for name, array in made.items()} == {
        "pair": (length, length, config.c_z),
        "single": (length, config.c_s),
        "structure": (length, config.structure.c),
        "msa_first_row": (length, config.evoformer.c_m),
    }
    # What the network makes of them is what it has predicted.
    model = tiny_model()
    with torch.no_grad():
        single = model.single(torch.from_numpy(made["msa_first_row"])).numpy()
        plddt = confidence.plddt(model.heads.lddt(torch.from_numpy(made["structure"])[None]))[0].numpy()
    np.testing.assert_allclose(made["single"], single, atol=1e-5)
    np.testing.assert_allclose(plddt, whole.plddt, atol=1e-3)
    spilled = folded(representations=("pair",)).representations
    assert spilled is not None
    np.testing.assert_allclose(spilled["pair"], made["pair"], atol=1e-4)
    write_prediction(tmp_path, whole)
    with np.load(tmp_path / f"representations_{whole.model}.npz") as archive:
        assert (archive["pair"] == made["pair"]).all()
    with pytest.raises(InputError, match="representations are msa_first_row, single, pair, structure, got 'msa'"):
        FoldingOptions(representations=("msa",))  # type: ignore[arg-type]


def test_logits_are_there_if_they_are_asked_for_and_give_the_same_confidences(tmp_path: Path) -> None:
    assert folded().logits is None
    # Without many rows the tiny network's confidences are the same for all pairs.
    letters = np.random.default_rng(0).choice(list("ACDEFGHIKLMNPQRSTVWY-"), (200, len(SEQUENCE)))
    alignment = tmp_path / "target.a3m"
    alignment.write_text(f">target\n{SEQUENCE}\n" + "".join(f">row\n{''.join(row)}\n" for row in letters))
    prediction = folded(alignments=(alignment,), logits=True)
    assert prediction.logits is not None
    assert prediction.pae is not None
    assert np.abs(prediction.pae - prediction.pae.T).max() > 5
    assert prediction.ptm is not None
    assert prediction.ptm > 0.01
    assert prediction.distances is not None
    assert prediction.distances.expected.std() > 1
    assert prediction.distances.contact.std() > 0.1
    errors = torch.from_numpy(prediction.logits["aligned_error"])[None]
    pae, _ = confidence.predicted_aligned_error(errors)
    np.testing.assert_allclose(prediction.pae, pae[0], rtol=1e-5)
    assert abs(float(ptm_of(errors, torch.ones(1, 20))) - prediction.ptm) < 1e-6
    np.testing.assert_allclose(prediction.plddt, confidence.plddt(torch.from_numpy(prediction.logits["lddt"])[None])[0])
    assert prediction.logits["distogram"].shape == (20, 20, 64)
    distances = torch.from_numpy(prediction.logits["distogram"]).softmax(-1) @ confidence.distance_values(64)
    np.testing.assert_allclose(prediction.distances.expected, distances[..., 0], rtol=1e-5)
    np.testing.assert_allclose(prediction.distances.contact, distances[..., 1], rtol=1e-4)


def test_an_ensemble_of_draws_is_not_one_draw() -> None:
    assert (folded(num_ensemble=2).plddt != folded().plddt).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_are_finite_and_in_range(dtype: str) -> None:
    prediction = folded(dtype=dtype)
    assert np.isfinite(prediction.protein.atom_positions).all()
    assert ((prediction.plddt > 0) & (prediction.plddt < 100)).all()
    assert 0 <= prediction.ptm <= 1
    assert prediction.protein.residue_index[0] == 1


def test_every_pass_gets_its_own_draw_and_the_result_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    draw, drawn, seen = recycling.draw, list[Sample](), list[tuple[Sequence[Batch], Recycled | None, Folded]]()

    def watched_draw(*given: Any) -> Sample:
        drawn.append(draw(*given))
        return drawn[-1]

    def watched(run: Executor, draws: Sequence[Batch], previous: Recycled | None, dtype: torch.dtype) -> Folded:
        seen.append((draws, previous, AlphaFold.fold(model, run, draws, previous, dtype)))
        return seen[-1][-1]

    monkeypatch.setattr(recycling, "draw", watched_draw)
    monkeypatch.setattr(model, "fold", watched)
    features = prepare(Target(name="target", sequence=SEQUENCE)).features
    result = fold_one(model, Whole(), features, tiny(), FoldingOptions(num_recycles=2))
    assert len(drawn) == 3
    for ((batch,), _, _), sample in zip(seen, drawn, strict=True):
        np.testing.assert_array_equal(batch.msa_feat[0], sample.msa_feat)
    assert seen[0][1] is None
    for (_, previous, _), (_, _, before) in zip(seen[1:], seen, strict=False):
        assert previous is not None
        assert torch.equal(previous.positions, before.structure.positions)
        assert as_tensor(previous.pair).shape == (1, len(SEQUENCE), len(SEQUENCE), tiny().model.c_z)
    assert (result.num_recycles, result.converged) == (2, False)


def test_recycling_stops_once_distances_stay_within_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    model, scales = tiny_model(), iter((1.0, 2.0, 2.001, 5.0))
    positions = 10 * torch.randn(1, len(SEQUENCE), 37, 3)

    def scaled(*given: Any) -> Folded:
        folded = AlphaFold.fold(model, *given)
        return replace(folded, structure=replace(folded.structure, positions=next(scales) * positions))

    monkeypatch.setattr(model, "fold", scaled)
    features = prepare(Target(name="target", sequence=SEQUENCE)).features
    result = fold_one(model, Whole(), features, tiny(), FoldingOptions(num_recycles=3, recycle_tolerance=0.5))
    assert (result.num_recycles, result.converged) == (2, True)
    assert (result.protein.atom_positions == (2.001 * positions[0]).numpy()).all()


def test_every_iteration_and_every_member_of_its_ensemble_is_another_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, drawn = recycling.draw, []

    def watched(*given: object) -> Sample:
        drawn.append(draw(*given))
        return drawn[-1]

    monkeypatch.setattr(recycling, "draw", watched)
    folded(num_ensemble=2)
    masked = {sample.msa_feat[..., :23].argmax(-1).tobytes() for sample in drawn}
    assert len(masked) == len(drawn) == 4


def test_distance_change_does_not_see_motion_or_padding() -> None:
    positions, mask = torch.randn(1, 6, 37, 3), torch.tensor([[1.0, 1, 1, 1, 1, 0]])
    turned = positions.flip(-1) * torch.tensor([1.0, 1.0, -1.0]) + 5
    turned[:, 5] += 100
    assert distance_change(positions, turned, mask) < 1e-3
    assert distance_change(positions, 2 * positions, mask) > 0.1


@pytest.mark.parametrize("wrong", [{"num_recycles": -1}, {"num_ensemble": 0}, {"dtype": "int8"}, {"seed": -1}])
def test_impossible_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="must"):
        replace(FoldingOptions(), **wrong)


@pytest.mark.parametrize(("name", "most"), [("num_recycles", 1000), ("num_ensemble", 100), ("seed", 2**62)])
def test_numbers_beyond_what_any_run_needs_are_refused(name: str, most: int) -> None:
    assert getattr(replace(FoldingOptions(), **{name: most}), name) == most
    with pytest.raises(InputError, match=f"{name} must be .* at most {most:,}, got {most + 1}"):
        replace(FoldingOptions(), **{name: most + 1})


def test_fold_returns_the_notes_of_its_parameters() -> None:
    features = prepare(Target(name="target", sequence=SEQUENCE)).features
    for name, begins in (("small", "DEMONSTRATION"), ("tiny", "UNTRAINED")):
        (model,) = find_models([name], None, seed=0)
        options = FoldingOptions(num_recycles=0)
        prediction = fold_one(model.network, Slabs(), features, model.preset, options)
        assert [note.split(":")[0] for note in prediction.notes] == [begins]
