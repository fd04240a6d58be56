"""Recycling: fresh draws, early stop, and a result that depends on the seed alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gemmi
import numpy as np
import pytest
import torch

from data_pipeline.complexes.complex_input import ComplexInput
from data_pipeline.complexes.pipeline import prepare_complex
from data_pipeline.complexes.target import ComplexTarget
from data_pipeline.errors import InputError
from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.features.sample import Sample
from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target, prepare
from helixfold import folding, inference
from helixfold.batch import Batch
from helixfold.cli.main import main
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding import FoldingOptions, distance_change, fold, recycle
from helixfold.inference import predict
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Folded, Recycled
from helixfold.model.update import Executor
from helixfold.ops.card import card_of
from helixfold.planning.executors import AvailableMemory, NotEnoughMemoryError
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.planning.prediction import forecast_prediction
from helixfold.prediction import Prediction
from helixfold.presets import PRESETS, tiny
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.find import find_models
from helixfold.write.results import write_prediction
from tests.model.ptm import ptm_of
from tests.support.networks import random_batch, tiny_model
from tests.weights.written import write_tiny_without_templates

SEQUENCE = "MKTAYIAKQRQISFVKSHFS"


def folded(seed: int = 0, alignments: tuple[Path, ...] = (), **options: object) -> Prediction:
    features = prepare(Target(name="target", sequence=SEQUENCE, alignments=alignments)).features
    return fold(
        tiny_model(), Slabs(), features, tiny(), FoldingOptions(seed=seed, num_recycles=1, **options), stages=Stages()
    )


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
        made = fold(model, run, features, tiny(), options, stages=Stages())
        assert not model.training
        assert (before == torch.random.get_rng_state()).all()
        np.testing.assert_allclose(made.protein.atom_positions, first, rtol=0, atol=1e-2)


def test_structures_of_all_passes_are_kept_if_they_are_asked_for(tmp_path: Path) -> None:
    assert folded().passes is None
    made = folded(save_passes=True)
    assert made.passes is not None
    assert len(made.passes) == 1
    first = fold(
        tiny_model(),
        Slabs(),
        prepare(Target(name="target", sequence=SEQUENCE)).features,
        tiny(),
        FoldingOptions(num_recycles=0),
        stages=Stages(),
    ).protein
    assert (made.passes[0].atom_positions == first.atom_positions).all()
    assert (made.passes[0].b_factors == first.b_factors).all()
    write_prediction(tmp_path, made)
    models = gemmi.read_structure(str(tmp_path / f"recycles_{made.model}.pdb"))
    assert len(models) == 2
    found, last = (np.array([cra.atom.pos.tolist() for cra in model.all()]) for model in models)
    np.testing.assert_allclose(last, made.protein.atom_positions[made.protein.atom_mask > 0.5], atol=1e-3)
    # Superposed, and not as it was predicted.
    assert np.abs(found.mean(0) - last.mean(0)).max() < 1.0
    assert np.abs(found - made.passes[0].atom_positions[made.protein.atom_mask > 0.5]).max() > 0.01


def test_representations_are_those_of_the_last_pass(tmp_path: Path) -> None:
    assert folded().representations is None
    whole = fold(
        tiny_model(),
        Whole(),
        prepare(Target(name="target", sequence=SEQUENCE)).features,
        tiny(),
        FoldingOptions(num_recycles=1, representations=("pair", "single", "structure", "msa_first_row")),
        stages=Stages(),
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


def test_every_pass_gets_its_own_draw_and_the_result_before() -> None:
    model, seen = tiny_model(), []

    def step(draws: Sequence[Batch], previous: Recycled | None) -> Folded:
        seen.append((draws, previous))
        return model.fold(Whole(), draws, previous)

    draws = [[random_batch(seed=seed)] for seed in range(3)]
    with torch.no_grad():
        result = recycle(step, lambda cycle: draws[cycle], 2)
    assert [given for given, _ in seen] == draws
    assert seen[0][1] is None
    assert seen[2][1].pair.shape == (1, 13, 13, 32)
    assert (result.num_recycles, result.converged) == (2, False)


def test_recycling_stops_once_distances_stay_within_the_tolerance() -> None:
    model, batch, scales = tiny_model(), random_batch(), iter((1.0, 2.0, 2.001, 5.0))
    with torch.no_grad():
        first = model.fold(Whole(), [batch])
        positions = 10 * torch.randn_like(first.structure.positions)

        def step(*_: object) -> Folded:
            return replace(first, structure=replace(first.structure, positions=next(scales) * positions))

        result = recycle(step, lambda _: [batch], 3, recycle_tolerance=0.5)
    assert (result.num_recycles, result.converged) == (2, True)
    assert torch.equal(result.folded.structure.positions, 2.001 * positions)


def test_every_iteration_and_every_member_of_its_ensemble_is_another_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, drawn = folding.draw, []

    def watched(*given: object) -> Sample:
        drawn.append(draw(*given))
        return drawn[-1]

    monkeypatch.setattr(folding, "draw", watched)
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


def test_one_call_predicts_with_the_models_that_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path)
    target = Target(name="target", sequence="MKTAYIAKQR")
    (prediction,) = predict(target, options=FoldingOptions(num_recycles=0))
    assert (prediction.model, len(prediction.plddt)) == ("small", 10)
    assert "DEMONSTRATION" in prediction.notes[0]
    (again,) = predict(target, ["small"], options=FoldingOptions(num_recycles=0))
    assert (again.protein.atom_positions == prediction.protein.atom_positions).all()
    (random,) = predict(target, ["tiny"], options=FoldingOptions(num_recycles=0))
    assert "UNTRAINED" in random.notes[0]


def test_one_call_gives_the_arrays_that_the_command_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path)
    alignment = tmp_path / "target.a3m"
    alignment.write_text(">target\nMKTAYIAKQR\n>other\nMKTAYIA-QR\n")
    weights = tmp_path / "params_tiny.safetensors"
    save_checkpoint(weights, find_models(["tiny"], None, seed=1)[0].network.state_dict(), tiny().model.to_dict())
    output = tmp_path / "out"
    assert main(f"predict {alignment} --weights {weights} --output {output} --seed 3 --device cpu".split()) == 0
    target = Target(name="target", sequence="MKTAYIAKQR", alignments=(alignment,))
    (prediction,) = predict(target, weights=weights, options=FoldingOptions(seed=3), device="cpu")
    again = tmp_path / "again" / "target"
    write_prediction(again, prediction, alignment_depth(prepare(target).features.msa))
    files = sorted(path.name for path in again.iterdir())
    assert len(files) == 6
    differing = [name for name in files if (again / name).read_bytes() != (output / "target" / name).read_bytes()]
    assert differing == ["unrelaxed_tiny.cif"]  # which also tells the command's settings and programs


@pytest.mark.parametrize("executor", [Whole, Slabs, Spilled])
def test_the_executor_that_fits_into_the_memory_limit_is_used(
    executor: type[Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[type] = []

    def recorded(model: AlphaFold, run: Executor, *_: object, **__: object) -> Prediction:
        used.append(type(run))
        raise RuntimeError("no need to go on")

    monkeypatch.setattr(inference, "fold", recorded)
    monkeypatch.setattr(
        "helixfold.planning.memory.read_available_memory",
        lambda _, __, memory: AvailableMemory(memory=memory, spill=2**30),
    )
    residues = 150 if executor is Whole else 400  # forecasts of shorter chains are those of rounded sizes
    size = FeatureRows(residues=residues, alignment=1, templates=0).size(tiny(), torch.float32)
    forecast = forecast_prediction(tiny().model, size, executor.__name__.lower(), card_of(torch.device("cpu")))
    # Whole streams may take half of the memory, and all others need a tenth more than their forecast.
    memory = MemoryOptions(memory=int(forecast.peak * (2.5 if executor is Whole else 1.15)))
    with pytest.raises(RuntimeError, match="no need to go on"):
        predict(Target(name="target", sequence="A" * residues), ["tiny"], device="cpu", memory=memory)
    assert used == [executor]


def test_too_little_memory_is_an_error_that_says_what_would_fit() -> None:
    target, memory = Target(name="target", sequence="MKTAYIAKQR"), MemoryOptions(memory=2**20)
    with pytest.raises(NotEnoughMemoryError, match=r"^tiny: 10 residues need .* what would fit: "):
        predict(target, ["tiny"], device="cpu", memory=memory)
    # An executor that is named is tried.
    named = replace(memory, executor="slabs")
    (prediction,) = predict(target, ["tiny"], options=FoldingOptions(num_recycles=0), device="cpu", memory=named)
    assert len(prediction.plddt) == 10


def test_no_more_models_are_run_once_one_has_the_score(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("model_1", "model_2"):
        monkeypatch.setitem(PRESETS, name, lambda name=name: replace(tiny(), name=name))
        network = find_models(["tiny"], None, seed=1)[0].network
        save_checkpoint(tmp_path / f"params_{name}.safetensors", network.state_dict(), tiny().model.to_dict())
    target, names = Target(name="target", sequence="MKTAYIAKQR"), ["model_1", "model_2"]
    for score, count in ((1.0, 1), (None, 2)):
        options = FoldingOptions(num_recycles=0, stop_at_score=score)
        predictions = predict(target, names, tmp_path, options, device="cpu")
        assert len(predictions) == count
        scores = [prediction.ranking_confidence for prediction in predictions]
        assert scores == sorted(set(scores), reverse=True)
    # Whichever of them is made first.
    predictions = predict(target, names[::-1], tmp_path, FoldingOptions(num_recycles=0), device="cpu")
    assert [prediction.ranking_confidence for prediction in predictions] == scores


def test_a_template_that_is_not_used_is_a_note_and_a_warning() -> None:
    shg = Path(__file__).parents[1] / "examples/templates/1shg.pdb"
    target = Target(name="target", sequence=SEQUENCE, templates=(shg,))
    with pytest.warns(UserWarning, match=r"1shg\.pdb gives no template: 1shg_A: .* no better than by chance"):
        (prediction,) = predict(target, ["tiny"], options=FoldingOptions(num_recycles=0))
    assert [note for note in prediction.notes if "1shg.pdb gives no template" in note]
    with pytest.warns(UserWarning, match=r"1shg\.pdb gives no template"):
        prepare(target)
    with pytest.warns(UserWarning, match=r"1shg\.pdb gives no template"):
        predict(
            ComplexInput(target=ComplexTarget.of("two", (SEQUENCE, SEQUENCE)), templates=(shg,)),
            ["tiny"],
            options=FoldingOptions(num_recycles=0),
        )


def test_a_template_that_the_model_does_not_read_is_a_note_and_a_warning(tmp_path: Path) -> None:
    helix = Path(__file__).parents[1] / "examples/structures/helix_long.pdb"
    target = Target(name="target", sequence=read_structure(helix).chains[0].sequence, templates=(helix,))
    weights = write_tiny_without_templates(tmp_path / "without_templates.safetensors")
    with pytest.warns(UserWarning, match="'tiny' reads no templates, so the templates of 'target' are not used"):
        (prediction,) = predict(target, weights=weights, options=FoldingOptions(num_recycles=0))
    assert prediction.notes == ("'tiny' reads no templates, so the templates of 'target' are not used",)


def test_fold_returns_the_notes_of_its_parameters() -> None:
    features = prepare(Target(name="target", sequence=SEQUENCE)).features
    for name, begins in (("small", "DEMONSTRATION"), ("tiny", "UNTRAINED")):
        (model,) = find_models([name], None, seed=0)
        options = FoldingOptions(num_recycles=0)
        prediction = fold(model.network, Slabs(), features, model.preset, options, stages=Stages())
        assert [note.split(":")[0] for note in prediction.notes] == [begins]


def test_dna_rna_and_three_letter_codes_are_errors() -> None:
    dna = "ACGTACGTACGTACGTACGTACGT"
    with pytest.raises(InputError, match="'gene' cannot be predicted: this is DNA"):
        predict(Target(name="gene", sequence=dna), ["tiny"])
    with pytest.raises(InputError, match="'gene' cannot be predicted: these are three-letter codes"):
        prepare(Target(name="gene", sequence="METGLYALAARG"))
    with pytest.raises(InputError, match="this is RNA"):
        prepare_complex(ComplexInput(target=ComplexTarget.of("pair", (SEQUENCE, "ACGUACGU"))))
    assert prepare(Target(name="peptide", sequence=dna, as_protein=True)).features.sequence == dna
