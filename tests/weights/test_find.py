"""Models that nobody names are those of the targets' kind, as far as there are parameters of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.io.errors import InputError
from helixfold.model.config import Method
from helixfold.model.presets import PRESETS, Preset, preset
from helixfold.weights import demonstration, find
from helixfold.weights.alphafold import from_state_dict
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.find import find_models
from helixfold.weights.npz import write_npz
from helixfold.weights.untrained import untrained_model

BOTH = ("model_1_ptm", "model_2_ptm", "model_1_multimer_v3", "model_2_multimer_v3")


@pytest.mark.parametrize(
    ("there", "method", "found"),
    [
        (BOTH, "monomer", ["model_1_ptm"]),
        (BOTH, "multimer", ["model_1_multimer_v3"]),
        (BOTH[:2], "multimer", ["model_1_ptm"]),
        (BOTH[2:], "monomer", ["model_1_multimer_v3"]),
        ((), "multimer", [demonstration.NAME]),
    ],
)
def test_downloaded_parameters_of_the_targets_kind_come_first(
    there: Sequence[str], method: Method, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "parameters_directory", lambda: tmp_path)
    monkeypatch.setattr(find, "_load", named)
    for name in there:
        (tmp_path / f"params_{name}.npz").touch()
    assert find_models([], None, seed=0, method=method) == found
    assert find_models(["model_2_ptm"], None, seed=0, method=method) == ["model_2_ptm"] if there == BOTH else True


@pytest.mark.parametrize(("method", "found"), [("monomer", list(BOTH[:2])), ("multimer", list(BOTH[2:]))])
def test_a_directory_gives_all_models_of_the_targets_kind(
    method: Method, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "_load", named)
    for name in BOTH:
        (tmp_path / f"{name}.npz").touch()
    assert find_models([], tmp_path, seed=0, method=method) == found
    for name in found:
        (tmp_path / f"{name}.npz").unlink()
    assert find_models([], tmp_path, seed=0, method=method) == [name for name in BOTH if name not in found]


def named(chosen: Preset, *_: object) -> str:
    """In place of a loaded model, its name."""
    return chosen.name


def test_parameters_are_found_by_name_in_a_directory_or_are_the_file_itself(tmp_path: Path) -> None:
    for name in ("params_model_1.npz", "model_1.pt", "model_2.safetensors", "params_model_2.pt"):
        (tmp_path / name).touch()
    found = find.find_parameters(["model_2", "model_1"], tmp_path)
    # Names with "params_" come first, and .npz before other formats.
    assert [(chosen.name, path and path.name) for chosen, path in found] == [
        ("model_2", "params_model_2.pt"),
        ("model_1", "params_model_1.npz"),
    ]
    other = tmp_path / "mine.npz"
    write_npz(other, {"not": np.zeros(3)})
    ((chosen, path),) = find.find_parameters([], tmp_path / "params_model_1.npz")
    assert (chosen.name, path) == ("model_1", tmp_path / "params_model_1.npz")
    ((chosen, path),) = find.find_parameters(["model_3"], other)
    assert (chosen.name, path) == ("model_3", other)
    for names, weights, problem in (
        ([], other, "does not fit any model; the models are model_1, "),
        (["model_1", "model_2"], other, "is one file, but 2 models are named; pass a directory of weights"),
        (["model_1", "model_1"], tmp_path, "each model must be named once, got model_1, model_1"),
        (["model_3"], tmp_path, "has no parameters of model_3; pass another --weights"),
        ([], tmp_path / "none", "no such file or directory of weights"),
    ):
        with pytest.raises(InputError, match=problem):
            find.find_parameters(names, weights)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no parameter files"):
        find.find_parameters([], tmp_path / "empty")


@pytest.mark.parametrize("recorded", ["tiny", "my_run"])
def test_a_named_model_reads_the_features_that_its_file_records(recorded: str, tmp_path: Path) -> None:
    settings = preset("tiny")
    own = replace(settings, name=recorded, num_recycles=1, sampling=replace(settings.sampling, max_extra_msa=16))
    path, state = tmp_path / "best.safetensors", untrained_model(settings.model, 0).state_dict()
    save_checkpoint(path, state, own.model.to_dict(), own.without_model())
    (named,), (unnamed,) = find_models(["tiny"], path, seed=0), find_models([], path, seed=0)
    assert named.preset == replace(unnamed.preset, name="tiny") == replace(own, name="tiny")


def test_a_file_of_another_preset_is_read_as_the_named_one(tmp_path: Path) -> None:
    first, second = preset("model_1"), preset("model_2")
    assert first.sampling != second.sampling
    path = tmp_path / "best.safetensors"
    save_checkpoint(path, {"a": torch.zeros(1)}, first.model.to_dict(), first.without_model())
    assert find.find_parameters(["model_2"], path) == [(second, path)]


def test_a_file_without_a_model_in_its_name_is_the_only_one_that_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    merged, config = tmp_path / "merged.npz", preset("tiny").model
    write_npz(merged, from_state_dict(untrained_model(config, 0).state_dict(), config))
    ((chosen, path),) = find.find_parameters([], merged)
    assert (chosen.name, path) == ("tiny", merged)
    assert capsys.readouterr().err == f"helixfold: {merged}: read as tiny, the only model that it fits\n"
    monkeypatch.setitem(PRESETS, "tiny_again", PRESETS["tiny"])
    with pytest.raises(InputError, match=r"fits 2 models .*; add --models with one of tiny, tiny_again$"):
        find.find_parameters([], merged)


def test_where_no_weights_are_given_tiny_models_are_random_and_others_must_be_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "parameters_directory", lambda: tmp_path)
    found = find.find_parameters(["tiny", "tiny_multimer"], None)
    assert [(chosen.name, path) for chosen, path in found] == [("tiny", None), ("tiny_multimer", None)]
    ((chosen, path),) = find.find_parameters([demonstration.NAME], None)
    assert (chosen.name, path) == (demonstration.NAME, demonstration.WEIGHTS)
    (tmp_path / "tiny.npz").touch()
    with pytest.raises(
        InputError, match="pass --weights, or run 'helixfold weights download --models model_1 model_2'"
    ):
        find.find_parameters(["model_1", "tiny", "model_2"], None)
    monkeypatch.setattr(find, "parameters_directory", lambda: None)
    with pytest.raises(InputError, match="no parameters of model_1: the home directory is unknown"):
        find.find_parameters(["model_1"], None)


def test_random_parameters_carry_a_note_and_take_no_adapters() -> None:
    (model,) = find_models(["tiny"], None, seed=3)
    assert model.provenance == "untrained"
    assert "random parameters (seed 3)" in model.notes[0]
    (other,) = find_models(["tiny"], None, seed=4)
    assert model.digest != other.digest
    assert find_models(["tiny"], None, seed=3)[0].digest == model.digest


def test_default_models_come_from_a_configuration_file(
    site_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_file.write_text("weights_directory = 'params'\nmonomer_models = ['model_2_ptm', 'model_3']\n")
    monkeypatch.setattr(find, "_load", named)
    directory = site_file.parent / "params"
    directory.mkdir()
    for name in (*BOTH, "model_3"):
        (directory / f"params_{name}.npz").touch()
    assert find_models([], None, seed=0) == ["model_2_ptm", "model_3"]
    assert find_models(["model_1_ptm"], None, seed=0) == ["model_1_ptm"]
    assert find_models([], None, seed=0, method="multimer") == ["model_1_multimer_v3"]
    (directory / "params_model_3.npz").unlink()
    problem = f"{site_file}: monomer_models names model_3, and {directory} does not have them; run 'helixfold weights"
    with pytest.raises(InputError, match=problem):
        find_models([], None, seed=0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "multimer_models = ['model_1_multimer_v4']",
            "multimer_models names the unknown model 'model_1_multimer_v4'; did",
        ),
        ("monomer_models = ['x']", "monomer_models names the unknown model 'x'; the models are model_1, "),
        ("monomer_models = ['tiny', 'tiny']", "monomer_models must name each model once, got tiny, tiny"),
    ],
)
def test_wrong_names_of_default_models_are_named_with_file_and_key(text: str, problem: str, site_file: Path) -> None:
    site_file.write_text(text)
    with pytest.raises(InputError, match=f"{site_file}: {problem}"):
        find.find_parameters([], None)


def test_weights_of_the_site_come_before_random_parameters(site_file: Path) -> None:
    site_file.write_text("weights_directory = '.'\nallow_demonstration_model = false\n")
    (site_file.parent / "params_tiny.npz").touch()
    ((chosen, path),) = find.find_parameters(["tiny"], None)
    assert (chosen.name, path) == ("tiny", site_file.parent / "params_tiny.npz")


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([], "no weights of model_1_ptm are configured"),
        (["small"], "'small' is the demonstration model"),
        (["tiny", "tiny_multimer"], "without --weights, the parameters of tiny, tiny_multimer are random"),
    ],
)
def test_the_demonstration_model_and_random_parameters_can_be_forbidden(
    names: list[str], reason: str, site_file: Path, tmp_path: Path
) -> None:
    site_file.write_text(f"weights_directory = '{tmp_path}'\nallow_demonstration_model = false\n")
    with pytest.raises(InputError) as caught:
        find.find_parameters(names, None)
    assert str(caught.value) == (
        f"{site_file}: allow_demonstration_model is false, and {reason}; run 'helixfold weights download', pass "
        "--weights, or set weights_directory"
    )
    # Weights that a command names are allowed, and so are measurements.
    assert find.find_parameters([], demonstration.WEIGHTS)[0][1] == demonstration.WEIGHTS
    assert find.find_parameters(names, None, is_measured=True)
