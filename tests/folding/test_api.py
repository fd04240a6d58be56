"""One call predicts as the command does, with models that are found and memory that is planned."""

import subprocess
import sys
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

import helixfold
from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.pipeline import prepare_complex
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target, prepare
from helixfold.cli.main import main
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole
from helixfold.folding import planned
from helixfold.folding.api import load_model, predict
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.folding.representations import representations
from helixfold.model.presets import PRESETS, tiny
from helixfold.model.update import Executor
from helixfold.ops.device_properties import properties_of
from helixfold.planning.estimate import Device, NotEnoughMemoryError
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.planning.passes import prediction_memory
from helixfold.results.prediction import write_prediction
from helixfold.weights.adapters import AdapterCard, WeightedAdapter, save_adapter
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.find import ReadyModel, find_models
from helixfold.weights.tensor_file import digest_of
from tests.support.sources import ROOT
from tests.weights.written import write_tiny_without_templates

SEQUENCE = "MKTAYIAKQRQISFVKSHFS"


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

    def recorded(*given: object, **_: object) -> list[Prediction]:
        used.append(type(given[4]))
        raise RuntimeError("no need to go on")

    monkeypatch.setattr(planned, "fold", recorded)
    monkeypatch.setattr(
        "helixfold.planning.memory.Device.at_hand",
        lambda device, _, memory: Device(properties=properties_of(device), memory=memory, spill=2**30),
    )
    residues = 150 if executor is Whole else 400  # sizes of shorter chains are rounded before the forecast
    size = FeatureRows(residues=residues, alignment=1, templates=0).size(tiny(), torch.float32)
    forecast = prediction_memory(tiny().model, size, executor.__name__.lower(), properties_of(torch.device("cpu")))
    # Whole streams may take half of the memory, and all others need a tenth more than their forecast.
    memory = MemoryOptions(memory=int(forecast.peak * (2.5 if executor is Whole else 1.15)))
    with pytest.raises(RuntimeError, match="no need to go on"):
        predict(Target(name="target", sequence="A" * residues), ["tiny"], device="cpu", memory=memory)
    assert used == [executor]


@pytest.mark.usefixtures("without_remedies")
def test_too_little_memory_is_an_error_that_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    target, memory = Target(name="target", sequence="MKTAYIAKQR"), MemoryOptions(memory=2**20)
    with pytest.raises(NotEnoughMemoryError, match=r"^tiny: 10 residues need .* what would fit: "):
        predict(target, ["tiny"], device="cpu", memory=memory)
    with pytest.raises(NotEnoughMemoryError, match=r"^tiny: 10 residues need .* with --executor slabs; .* leave out"):
        predict(target, ["tiny"], device="cpu", memory=replace(memory, executor="slabs"))
    # An executor that is named is tried where nobody limits the memory.
    monkeypatch.setattr("helixfold.planning.estimate.available_memory", lambda device: 2**20)
    options, named = FoldingOptions(num_recycles=0), MemoryOptions(executor="slabs")
    (prediction,) = predict(target, ["tiny"], options=options, device="cpu", memory=named)
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
    shg = Path(__file__).parents[2] / "examples/templates/1shg.pdb"
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
    helix = Path(__file__).parents[2] / "examples/structures/helix_long.pdb"
    target = Target(name="target", sequence=read_structure(helix).chains[0].sequence, templates=(helix,))
    weights = write_tiny_without_templates(tmp_path / "without_templates.safetensors")
    with pytest.warns(UserWarning, match="'tiny' reads no templates, so the templates of 'target' are not used"):
        (prediction,) = predict(target, weights=weights, options=FoldingOptions(num_recycles=0))
    assert prediction.notes == ("'tiny' reads no templates, so the templates of 'target' are not used",)


def test_dna_rna_and_three_letter_codes_are_errors() -> None:
    dna = "ACGTACGTACGTACGTACGTACGT"
    with pytest.raises(InputError, match="'gene' cannot be predicted: this is DNA"):
        predict(Target(name="gene", sequence=dna), ["tiny"])
    with pytest.raises(InputError, match="'gene' cannot be predicted: these are three-letter codes"):
        prepare(Target(name="gene", sequence="METGLYALAARG"))
    with pytest.raises(InputError, match="this is RNA"):
        prepare_complex(ComplexInput(target=ComplexTarget.of("pair", (SEQUENCE, "ACGUACGU"))))
    assert prepare(Target(name="peptide", sequence=dna, as_protein=True)).features.sequence == dna


def test_a_model_that_was_loaded_folds_sequences_and_files(tmp_path: Path) -> None:
    model = load_model("tiny", seed=2, device="cpu")
    options = FoldingOptions(num_recycles=0, seed=2)
    (tmp_path / "one.fasta").write_text(f">one\n{SEQUENCE}\n")
    (read,) = predict(str(tmp_path / "one.fasta"), model, options=options)
    (given,) = predict(Target(name="one", sequence=SEQUENCE), [model], options=options)
    (found,) = predict(Target(name="one", sequence=SEQUENCE), "tiny", options=options, device="cpu")
    assert (read.plddt == found.plddt).all()
    assert (read.plddt == given.plddt).all()
    (typed,) = predict(SEQUENCE, model, options=options)
    assert len(typed.plddt) == len(SEQUENCE)
    (pair,) = predict(f"{SEQUENCE}:MKTAYIAKQR", "tiny_multimer", options=options)
    assert len(pair.chain_ids) == 2


def test_what_contradicts_a_loaded_model_is_refused(tmp_path: Path) -> None:
    model = load_model("tiny")
    for named in ({"device": "cpu"}, {"weights": tmp_path}):
        with pytest.raises(InputError, match="loaded models cannot be combined"):
            predict(SEQUENCE, model, **named)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="loaded models cannot be combined"):
        predict(SEQUENCE, [model, "tiny"])
    model.network.evoformer.to(torch.bfloat16)
    with pytest.raises(InputError, match="an earlier call has rounded the parameters to bfloat16; load"):
        predict(SEQUENCE, model, options=FoldingOptions(dtype="float32"))


def test_a_file_of_several_targets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "two.fasta").write_text(f">one\n{SEQUENCE}\n>two\n{SEQUENCE}\n")
    with pytest.raises(InputError, match=r"two\.fasta: the file has 2 targets; expected one"):
        predict(tmp_path / "two.fasta", "tiny")
    with pytest.raises(InputError, match=r"nowhere\.fasta"):
        predict("nowhere.fasta", "tiny")


def test_names_of_the_package_are_functions_also_after_the_command_line_was_imported() -> None:
    program = """
import sys
import helixfold
assert "torch" not in sys.modules
import helixfold.apps.predict.run, helixfold.cli.predict
(prediction,) = helixfold.predict("MKTAYIAKQR", "tiny", options=helixfold.FoldingOptions(num_recycles=0))
assert isinstance(prediction, helixfold.Prediction)
assert {"predict", "load_model"} <= set(dir(helixfold))
try:
    helixfold.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "module 'helixfold' has no attribute 'nothing'\n"


def predicted(*given: Any, **named: Any) -> Prediction:
    """One prediction by the model with random parameters, without recycling."""
    (prediction,) = predict(*given, **{"models": "tiny", "num_recycles": 0, "device": "cpu", **named})
    return prediction


def test_arguments_are_the_fields_of_the_options_with_their_defaults() -> None:
    arguments = signature(predict).parameters
    for field in fields(FoldingOptions):
        assert arguments[field.name].default == field.default, field.name
    options = FoldingOptions(num_recycles=0, seed=3, representations=("single",))
    given, named = predicted(SEQUENCE, options=options, num_recycles=None), predicted(SEQUENCE, seed=3)
    assert given.seed == named.seed == 3
    assert (given.plddt == named.plddt).all()
    with pytest.raises(InputError, match="pass options, or its fields as arguments, not both"):
        predict(SEQUENCE, "tiny", options=options, num_recycles=1)
    with pytest.raises(InputError, match="num_recycles must be at least 0"):
        predict(SEQUENCE, "tiny", num_recycles=-1)


@pytest.mark.parametrize(
    "text",
    [
        f"{SEQUENCE}*",
        SEQUENCE.lower(),
        f" {SEQUENCE[:10]} {SEQUENCE[10:]}\n",
        f"\n{SEQUENCE[:10]}\n{SEQUENCE[10:].lower()}\n",
    ],
)
def test_a_sequence_is_read_as_it_was_copied(text: str) -> None:
    assert (predicted(text).plddt == predicted(SEQUENCE).plddt).all()


def test_text_of_a_file_is_the_same_as_the_file(tmp_path: Path) -> None:
    hit = f"{SEQUENCE[:5]}--{SEQUENCE[7:]}"
    texts = {"one.fasta": f">one\n{SEQUENCE.lower()}\n", "two.a3m": f">two\n{SEQUENCE}\n>hit\n{hit[:9]}aaa{hit[9:]}\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        read, given = predicted(tmp_path / name), predicted(text)
        assert read.features is not None
        assert given.features is not None
        assert given.features.domain_name == read.features.domain_name == Path(name).stem
        assert (given.features.msa == read.features.msa).all()  # type: ignore[union-attr]
        assert (given.plddt == read.plddt).all()


def test_an_alignment_and_templates_are_given_as_one_or_as_several(tmp_path: Path) -> None:
    helix = ROOT / "examples/structures/helix_long.pdb"
    sequence = read_structure(helix).chains[0].sequence
    text = f">target\n{sequence}\n>hit\n-{sequence[1:]}\n"
    (tmp_path / "target.a3m").write_text(text)
    whole = Target(name="target", sequence=sequence, alignments=(tmp_path / "target.a3m",), templates=(helix,))
    expected = predicted(whole)
    assert len(prepare(whole).features.msa) == 2
    alignment = tmp_path / "target.a3m"
    for msa, templates in ((str(alignment), [helix]), ([alignment], str(helix)), (text, [helix])):
        found = predicted(Target(name="target", sequence=sequence), msa=msa, templates=templates)
        assert (found.protein.atom_positions == expected.protein.atom_positions).all()
    with pytest.raises(InputError, match=r"nothing\.pdb: no such structure file"):
        predict(sequence, "tiny", templates="nothing.pdb")


def test_features_and_their_file_are_targets(tmp_path: Path) -> None:
    features = prepare(Target(name="one", sequence=SEQUENCE)).features
    features.save(tmp_path / "features.npz")
    expected = predicted(Target(name="one", sequence=SEQUENCE))
    for given in (features, tmp_path / "features.npz", str(tmp_path / "features.npz")):
        assert (predicted(given).plddt == expected.plddt).all()
    with pytest.raises(InputError, match="features have their MSA and templates"):
        predict(features, "tiny", msa=f">one\n{SEQUENCE}\n")


def test_dna_is_refused_unless_every_letter_is_a_residue() -> None:
    dna = "acgtacgtacgtacgtacgtacgt"
    for given in (dna, f">gene\n{dna}\n"):
        with pytest.raises(InputError, match="this is DNA"):
            predict(given, "tiny")
        assert len(predicted(given, as_protein=True).plddt) == 24


def test_a_string_is_one_item_and_not_its_letters() -> None:
    one = predicted(SEQUENCE, representations="single", cyclic="A")
    assert one.representations is not None
    assert [*one.representations] == ["single"]
    assert one.protein.cyclic_chains == {0}
    assert FoldingOptions(representations="pair").representations == ("pair",)  # type: ignore[arg-type]
    (found,) = representations(Target(name="one", sequence=SEQUENCE), "single", model="tiny", device="cpu")
    assert [*found] == ["single"]


def test_each_seed_is_a_prediction(tmp_path: Path) -> None:
    found = predict(SEQUENCE, "tiny", seeds=(0, 5), num_recycles=0, dropout=True)
    assert {each.name for each in found} == {"tiny_seed_0", "tiny_seed_5"}
    assert {each.seed for each in found} == {0, 5}
    assert (found[0].plddt != found[1].plddt).any()
    assert not [note for each in found for note in each.notes if "every seed" in note]
    (one,) = predict(SEQUENCE, "tiny", seeds=5, num_recycles=0)
    assert (one.name, one.seed) == ("tiny", 5)
    with pytest.raises(InputError, match=r"seeds must be different, got \[1, 1\]"):
        predict(SEQUENCE, "tiny", seeds=[1, 1])


def test_seeds_that_make_no_difference_are_a_note_and_a_warning() -> None:
    model = load_model("tiny", device="cpu")
    sampling = replace(model.preset.sampling, masked_msa_fraction=0.0, unknown_fraction=0.0)
    model = replace(model, preset=replace(model.preset, sampling=sampling))
    with pytest.warns(UserWarning, match="'tiny' gives the same prediction with every seed, because nothing is drawn"):
        one, other = predict(SEQUENCE, model, seeds=(0, 1), num_recycles=0)
    assert {one.seed, other.seed} == {0, 1}
    assert (one.plddt == other.plddt).all()
    assert "every seed" in other.notes[-1]


def test_parameter_files_are_models_and_notes_are_warnings(tmp_path: Path) -> None:
    weights = tmp_path / "params_tiny.safetensors"
    network = find_models(["tiny"], None, seed=1)[0].network
    save_checkpoint(weights, network.state_dict(), tiny().model.to_dict())
    expected = predicted(SEQUENCE, weights=weights, models=())
    for models in (str(weights), weights, [weights], load_model(weights, device="cpu")):
        device = {} if isinstance(models, ReadyModel) else {"device": "cpu"}
        (found,) = predict(SEQUENCE, models, num_recycles=0, **device)  # type: ignore[arg-type]
        assert (found.plddt == expected.plddt).all()
    with pytest.raises(InputError, match="pass names of models with weights, or parameter files as models"):
        predict(SEQUENCE, [str(weights), "tiny"])
    with pytest.warns(UserWarning, match="UNTRAINED: made by the 'tiny' preset") as caught:
        predict(SEQUENCE, "tiny", num_recycles=0)
    assert {each.filename for each in caught} == {__file__}


def test_adapters_are_files_with_weights(tmp_path: Path) -> None:
    weights, name = tmp_path / "params_tiny.safetensors", "heads.lddt.out.bias"
    state = find_models(["tiny"], None, seed=1)[0].network.state_dict()
    save_checkpoint(weights, state, tiny().model.to_dict())
    files = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    card = AdapterCard(kind="heads", base=digest_of(state), base_name=weights.name)
    for index, path in enumerate(files):
        save_adapter(path, {name: state[name] + 2.0**index}, card)
    first, second = map(str, files)
    for adapters, change in (
        (files[0], 1.0),
        (first, 1.0),
        (f"{first}=0.5", 0.5),
        (files, 3.0),
        ([WeightedAdapter(path=files[0], weight=-1.0), f"{second}=0.25"], -0.5),
    ):
        model = load_model("tiny", weights, device="cpu", adapters=adapters)
        torch.testing.assert_close(model.network.state_dict()[name] - state[name], torch.full((50,), change))
        assert len(model.notes) == (1 if change in (1.0, 0.5) else 2)


def test_a_bar_is_shown_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(planned, "_BAR_AFTER", 0)
    predicted(SEQUENCE, progress=False)
    assert capsys.readouterr().err == ""
    predicted(SEQUENCE, progress=True)
    assert "iterations: " in capsys.readouterr().err


def test_every_public_name_is_imported_when_it_is_used() -> None:
    assert {*helixfold.__all__} <= {*dir(helixfold)}
    for name in helixfold.__all__:
        assert getattr(helixfold, name).__doc__
