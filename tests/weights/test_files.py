"""Commands on parameter files print what a file is and write what its new name says."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from data_pipeline.io.errors import InputError
from helixfold.model.presets import preset, tiny
from helixfold.weights import demonstration, files
from helixfold.weights.adapters import AdapterCard, save_adapter
from helixfold.weights.checkpoint import read_header, save_checkpoint
from helixfold.weights.files import convert, download, inspect, merge, preset_of_file

SHAPES = {"a.blocks.0.w": (2, 3), "a.blocks.1.w": (2, 3), "a.blocks.1.b": (3,), "z": (5,)}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "mine.safetensors"
    save_checkpoint(path, {name: torch.full(shape, 1 + 2**-10) for name, shape in SHAPES.items()}, {"c": 1})
    return path


def test_an_adapter_is_shown_with_its_base_training_and_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = {
        "training_set": {"name": "kinases", "chains": 3},
        "held_out": ["1abc_A"],
        "seed": 5,
        "settings": {"a": 1},
    }
    scores = {"before": 0.5, "after": 0.75}
    card = AdapterCard(kind="heads", base="0123456789abcdef", base_name="mine.npz", training=training, scores=scores)
    save_adapter(tmp_path / "adapter.safetensors", {"heads.x": torch.zeros(2)}, card)
    inspect(tmp_path / "adapter.safetensors")
    assert capsys.readouterr().out.splitlines() == [
        "format: adapter of helixfold finetune (heads)",
        "base: mine.npz (SHA-256 0123456789ab)",
        'held out: ["1abc_A"]',
        "seed: 5",
        'training set: {"chains": 3, "name": "kinases"}',
        'scores: {"after": 0.75, "before": 0.5}',
    ]


@pytest.fixture
def any_preset(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A model with these parameters, whatever is asked for; returns the names that were asked for."""
    asked: list[object] = []
    model = SimpleNamespace(to_dict=lambda: {"c": 2})
    chosen = SimpleNamespace(model=model, without_model=lambda: {"name": "some"})

    def state(path: Path, _: object) -> dict[str, Tensor]:
        return {name: torch.full(shape, 1 + 2**-10) for name, shape in SHAPES.items()}

    monkeypatch.setattr(files, "preset_of_file", lambda _, name: asked.append(name) or chosen)
    monkeypatch.setattr(files, "load_weights", state)
    return asked


def test_blocks_of_a_stack_share_a_line(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fits = ["tiny", "model_1"]
    monkeypatch.setattr(files, "matching_presets", lambda *_: fits)
    inspect(small, arrays=True)
    summary = ["format: helixfold's .safetensors", "parameters: 20, in 4 arrays", "fits presets: tiny, model_1"]
    assert capsys.readouterr().out.splitlines() == [
        *summary,
        "provenance: written by helixfold",
        "arrays:",
        "  a.blocks.*.b [3]",
        "  a.blocks.*.w [2, 3] x 2",
        "  z [5]",
    ]
    fits.clear()
    inspect(small)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "fits presets: none",
        "provenance: written by helixfold",
        "(--arrays lists the arrays)",
    ]


def test_the_provenance_is_what_the_file_or_its_checksum_says(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files._provenance(demonstration.WEIGHTS) == "the demonstration model that comes with helixfold"
    state = {"a": torch.zeros(2)}
    save_checkpoint(small, state, {}, descends_from=demonstration.NAME, began_with="began with x")
    assert files._provenance(small) == "written by helixfold; trained further from its demonstration model"
    save_checkpoint(small, state, {}, began_with="began with x")
    assert files._provenance(small) == "written by helixfold; its training began with x"
    published = tmp_path / "params_some.npz"
    published.write_bytes(b"PK\x03\x04")
    monkeypatch.setattr(files, "file_format", lambda path: "npz")
    monkeypatch.setattr(files, "PUBLISHED_SHA256", {published.name: "right"})
    for checksum, said in (
        ("right", "DeepMind's, by the published copies' checksum"),
        ("wrong", "unknown"),
    ):
        monkeypatch.setattr(files, "sha256_of", lambda _, checksum=checksum: checksum)
        assert files._provenance(published) == said


def test_a_file_is_rewritten_with_its_settings_and_its_origin(
    small: Path, any_preset: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(small, {"a": torch.zeros(2)}, {}, began_with="began with x")
    target = small.with_name("half.safetensors")
    convert(small, target, "named", dtype="bfloat16")
    assert any_preset == ["named"]
    header = read_header(target)
    assert (header.config, header.use, header.began_with) == ({"c": 2}, {"name": "some"}, "began with x")
    assert header.shapes == SHAPES
    assert target.stat().st_size < 2000
    assert capsys.readouterr().out == f"{target}: 4 tensors, 20 parameters\n"
    with pytest.raises(InputError, match="exists already"):
        convert(small, target)
    convert(small, target, overwrite=True)
    with pytest.raises(InputError, match=r"only \.safetensors can be written in bfloat16"):
        convert(small, small.with_name("x.npz"), dtype="bfloat16")
    with pytest.raises(InputError, match=r"a name that ends in \.npz, \.pt, \.safetensors"):
        convert(small, small.with_name("x.h5"))
    with pytest.raises(InputError, match="cannot be written"):
        convert(small, small / "x.safetensors")


def test_the_suffix_says_which_program_a_file_is_for(
    small: Path, any_preset: list[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files.alphafold, "from_state_dict", lambda state, _: ("alphafold", *state))
    monkeypatch.setattr(files.openfold, "from_state_dict", lambda state, _: ("openfold", *state))
    written = {}
    for name in ("write_npz", "write_pt"):
        monkeypatch.setattr(files, name, lambda path, arrays, name=name: written.update({path.name: (name, arrays)}))
    save_checkpoint(small, {"a": torch.zeros(2)}, {}, descends_from=demonstration.NAME)
    for target in ("x.NPZ", "x.pt"):
        convert(small, small.with_name(target))
        assert f"this format cannot hold the note {demonstration.MARK}" in capsys.readouterr().out
    assert written == {
        "x.NPZ": ("write_npz", ("alphafold", *SHAPES)),
        "x.pt": ("write_pt", ("openfold", *SHAPES)),
    }
    target = small.with_name("x.safetensors")
    convert(small, target)
    assert read_header(target).descends_from == demonstration.NAME
    assert demonstration.MARK not in capsys.readouterr().out


def test_adapters_are_merged_and_named_in_the_file(
    small: Path, any_preset: list[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        files, "with_adapters", lambda state, adapters, _: ({"w": torch.ones(2)}, tuple(f"added {a}" for a in adapters))
    )
    target = small.with_name("merged.safetensors")
    merge(small, target, ["one", "two"])  # type: ignore[list-item]
    assert read_header(target).began_with == "began with mine.safetensors. added one added two"
    assert read_header(target).shapes == {"w": (2,)}
    assert capsys.readouterr().out.splitlines()[-2:] == ["added one", "added two"]
    with pytest.raises(InputError, match="exists already"):
        merge(small, target, ["one"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="--adapter"):
        merge(small, target, [], overwrite=True)


def test_a_preset_is_the_given_one_or_the_files_or_its_names(small: Path) -> None:
    assert preset_of_file(small, "tiny").name == "tiny"
    with pytest.raises(InputError, match="does not fit any model; the models are model_1, "):
        preset_of_file(small, None)
    named = small.rename(small.with_name("params_tiny.safetensors"))
    assert preset_of_file(named, None).name == "tiny"
    assert preset_of_file(named, "model_1").name == "model_1"
    assert preset_of_file(demonstration.WEIGHTS, None).name == demonstration.NAME
    trained = replace(tiny(), model=tiny().model.with_settings(["structure.layers=1"]))
    save_checkpoint(small, {"a": torch.zeros(2)}, trained.model.to_dict(), trained.without_model())
    assert preset_of_file(small, None).model == trained.model
    assert preset_of_file(small, "tiny") == tiny()
    one_iteration = replace(trained, num_recycles=0, sampling=replace(trained.sampling, max_extra_msa=7))
    save_checkpoint(small, {"a": torch.zeros(2)}, trained.model.to_dict(), one_iteration.without_model())
    assert preset_of_file(small, "tiny") == replace(one_iteration, model=tiny().model)
    assert preset_of_file(small, "model_1") == preset("model_1")


def test_a_download_says_which_files_have_a_known_checksum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def fetched(models: list[str], **options: object) -> list[Path]:
        asked.append((models, options))
        return [Path("known.npz"), Path("other.npz")]

    monkeypatch.setattr(files, "download_parameters", fetched)
    monkeypatch.setattr(files, "PUBLISHED_SHA256", {"known.npz": ""})
    download(["a", "b"], directory=Path("d"), url="u")
    assert asked == [(["a", "b"], {"directory": Path("d"), "url": "u"})]
    first, second, licence = capsys.readouterr().out.splitlines()
    assert first == "known.npz (checksum equal to published copies)"
    assert second == f"other.npz ({files.UNPUBLISHED})"
    assert "CC BY 4.0" in licence
