"""The model in the package is what its preset, its facts and its card say, and says so wherever it is used."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from helixfold.model.presets import preset
from helixfold.weights import demonstration
from helixfold.weights.checkpoint import read_header, save_checkpoint
from helixfold.weights.files import convert
from helixfold.weights.find import find_models, trained_preset
from helixfold.weights.load import load_weights

MOST_BYTES = 12_000_000


@pytest.fixture(autouse=True)
def nothing_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "none")


def test_the_file_is_small_in_bfloat16_and_of_the_preset() -> None:
    assert demonstration.WEIGHTS.stat().st_size <= MOST_BYTES
    with safe_open(demonstration.WEIGHTS, framework="pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert kinds == {"BF16"}
    assert trained_preset(demonstration.WEIGHTS) == preset("small")


def test_facts_are_those_of_the_file() -> None:
    state = load_weights(demonstration.WEIGHTS, preset("small").model)
    known = demonstration.facts()
    assert known["parameters"] == sum(tensor.numel() for tensor in state.values())
    assert known["sha256"] == read_header(demonstration.WEIGHTS).sha256
    for score in (known["held_out_lddt_ca"], known["template"]["lddt_ca"], known["alignment"]["lddt_ca"]):
        assert 0 < score["low"] < score["mean"] < score["high"] < 1
    assert demonstration.WEIGHTS.with_suffix(".md").read_text().startswith("# ")


def test_without_weights_and_by_its_name_it_is_what_is_found() -> None:
    for names in ([], ["small"]):
        (model,) = find_models(names, None, seed=0)
        assert (model.preset, model.provenance, model.notes) == (
            preset("small"),
            "demonstration",
            (demonstration.note(),),
        )


def test_a_copy_is_known_by_its_content_and_another_of_its_kind_is_not(tmp_path: Path) -> None:
    copy = tmp_path / "mine.safetensors"
    shutil.copy(demonstration.WEIGHTS, copy)
    (model,) = find_models([], copy, seed=0)
    assert (model.provenance, len(model.notes)) == ("demonstration", 1)
    state = load_weights(copy, preset("small").model)
    trained_on = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in state.items()}
    save_checkpoint(copy, trained_on, preset("small").model.to_dict(), preset("small").without_model())
    (model,) = find_models([], copy, seed=0)
    assert (model.provenance, model.notes) == ("trained", ())


def test_what_was_trained_from_it_says_so(tmp_path: Path) -> None:
    assert demonstration.ancestor(demonstration.WEIGHTS) == "small"
    chosen = preset("small")
    state = load_weights(demonstration.WEIGHTS, chosen.model)
    changed = {name: tensor + 0.01 for name, tensor in state.items()}
    tuned = tmp_path / "tuned.safetensors"
    save_checkpoint(tuned, changed, chosen.model.to_dict(), chosen.without_model(), descends_from="small")
    (model,) = find_models([], tuned, seed=0)
    assert model.provenance == "demonstration"
    assert model.notes[0].startswith("DEMONSTRATION: made by parameters trained further from 'small', the small")
    convert(tuned, tmp_path / "half.safetensors", dtype="bfloat16")
    assert demonstration.ancestor(tmp_path / "half.safetensors") == "small"


def test_a_format_that_loses_the_note_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(demonstration.WEIGHTS, tmp_path / "small.npz")
    assert "this format cannot hold the note DEMONSTRATION" in capsys.readouterr().out
    assert demonstration.ancestor(tmp_path / "small.npz") is None


def test_the_note_says_what_it_knows_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = {"parameters": 1_950_000, "training_chains": 1112, "held_out_chains": 132, "more": "is left alone"}
    path = tmp_path / "facts.json"
    template = {"targets": 120, "lddt_ca": {"mean": 0.703, "low": 0.684, "high": 0.722}}
    alone = {"mean": 0.412, "low": 0.398, "high": 0.426}
    path.write_text(json.dumps({**facts, "held_out_lddt_ca": alone, "template": template}))
    monkeypatch.setattr(demonstration, "FACTS", path)
    demonstration.facts.cache_clear()
    try:
        assert demonstration.note() == (
            "DEMONSTRATION: made by 'small', the small model that comes with helixfold, so do not rely on this "
            "structure. The mean CA-lDDT of 'small' is 0.41 on unseen families, 0.70 with a template; 'helixfold "
            "weights download' fetches DeepMind's parameters."
        )
    finally:
        demonstration.facts.cache_clear()
