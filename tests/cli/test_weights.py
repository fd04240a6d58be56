from itertools import pairwise
from pathlib import Path

import pytest
import torch

from data_pipeline.io.errors import InputError
from helixfold.cli.main import main
from helixfold.model.presets import PRESETS, preset
from helixfold.weights import demonstration
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.files import convert, download, inspect
from helixfold.weights.load import load_weights
from helixfold.weights.untrained import untrained_model
from tests.weights.server import Behaviour, serving
from tests.weights.test_download import ARCHIVE, FILE

TINY = preset("tiny").model


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, untrained_model(TINY, seed=2).state_dict(), TINY.to_dict())
    return path


def test_a_file_goes_through_all_formats_and_back(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [checkpoint, *(checkpoint.with_name(f"next{suffix}") for suffix in (".npz", ".pt", ".safetensors"))]
    for source, target in pairwise(files):
        convert(source, target, "tiny")
    first, last = load_weights(files[0], TINY), load_weights(files[-1], TINY)
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert "405 tensors, 385,962 parameters" in capsys.readouterr().out


def test_numbers_can_be_rounded_to_half_their_size(checkpoint: Path) -> None:
    target = checkpoint.with_name("half.safetensors")
    convert(checkpoint, target, "tiny", dtype="bfloat16")
    assert target.stat().st_size < 0.6 * checkpoint.stat().st_size
    whole, rounded = load_weights(checkpoint, TINY), load_weights(target, TINY)
    assert all(torch.equal(whole[name].bfloat16().float(), rounded[name]) for name in whole)
    assert not all(torch.equal(whole[name], rounded[name]) for name in whole)
    with pytest.raises(InputError, match=r"only \.safetensors can be written in bfloat16; leave --dtype out"):
        convert(checkpoint, checkpoint.with_name("x.npz"), "tiny", dtype="bfloat16")


def test_an_existing_file_is_not_overwritten(checkpoint: Path) -> None:
    target = checkpoint.with_name("x.npz")
    target.write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        convert(checkpoint, target, "tiny")
    assert target.read_text() == "precious"
    convert(checkpoint, target, "tiny", overwrite=True)
    assert target.stat().st_size > 1_000_000


def test_an_unknown_format_is_not_written(checkpoint: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.npz, \.pt, \.safetensors"):
        convert(checkpoint, checkpoint.with_name("x.h5"), "tiny")


def test_the_wrong_preset_writes_nothing(checkpoint: Path) -> None:
    with pytest.raises(InputError, match="it fits tiny"):
        convert(checkpoint, checkpoint.with_name("x.npz"), "model_1")
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


def test_a_name_or_else_the_shapes_say_which_model_it_is(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = checkpoint.rename(checkpoint.with_name("params_tiny.safetensors"))
    convert(named, named.with_name("x.npz"))
    assert "read as" not in capsys.readouterr().err
    unnamed = named.rename(named.with_name("mine.safetensors"))
    convert(unnamed, unnamed.with_name("y.npz"))
    assert f"{unnamed}: read as tiny, the only model that it fits\n" in capsys.readouterr().err
    monkeypatch.setitem(PRESETS, "tiny_again", PRESETS["tiny"])
    problem = "fits 2 models and does not have the name of one; add --model with one of tiny, tiny_again$"
    with pytest.raises(InputError, match=problem):
        convert(unnamed, unnamed.with_name("z.npz"))
    assert not unnamed.with_name("z.npz").exists()


def test_a_place_that_cannot_be_written_is_named(checkpoint: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        convert(checkpoint, checkpoint / "x.npz", "tiny")


def test_inspect_tells_what_a_file_is_for(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = [
        "format: helixfold's .safetensors",
        "parameters: 385,962, in 405 arrays",
        "fits presets: tiny",
        "provenance: written by helixfold",
    ]
    inspect(checkpoint)
    assert capsys.readouterr().out.splitlines() == [*summary, "(--arrays lists the arrays)"]
    assert main(["weights", "inspect", str(checkpoint), "--arrays"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [*summary, "arrays:"]
    assert "  evoformer.blocks.*.msa_transition.linear_1.weight [128, 64] x 2" in lines


def test_inspect_tells_where_parameters_come_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(demonstration.WEIGHTS)
    assert "provenance: the demonstration model that comes with helixfold\n" in capsys.readouterr().out
    further = tmp_path / "further.safetensors"
    save_checkpoint(
        further, untrained_model(TINY, seed=2).state_dict(), TINY.to_dict(), descends_from=demonstration.NAME
    )
    inspect(further)
    assert "provenance: written by helixfold; trained further from its demo" in capsys.readouterr().out
    other = tmp_path / "params_model_1_ptm.npz"
    convert(further, other, "tiny")
    capsys.readouterr()
    inspect(other)
    assert "provenance: unknown\n" in capsys.readouterr().out


def test_download_says_where_and_under_which_licence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(content=ARCHIVE)) as url:
        download(["tiny"], directory=tmp_path, url=url)
    assert (tmp_path / "params_tiny.npz").read_bytes() == FILE
    out = capsys.readouterr().out
    assert str(tmp_path / "params_tiny.npz") in out
    assert "no published checksum" in out
    assert "CC BY 4.0" in out


def test_the_command_line_reaches_the_functions(checkpoint: Path) -> None:
    target = checkpoint.with_name("x.npz")
    assert main(["weights", "convert", str(checkpoint), str(target), "--model", "tiny"]) == 0
    assert target.exists()
    assert main(["weights", "inspect", str(target)]) == 0
    assert main(["weights", "download", "--models", "model_9"]) == 2


def test_a_server_that_is_not_there_is_not_a_mistake_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("data_pipeline.io.remote_file.time.sleep", lambda _: None)
    with serving(Behaviour(content=b"")) as url:
        pass
    assert main(["weights", "download", "--output", str(tmp_path), "--url", url]) == 3
    assert f"{url}: cannot be reached (the connection was refused)" in capsys.readouterr().err
    with serving(Behaviour(content=b"", statuses=[404])) as url:
        assert main(["weights", "download", "--output", str(tmp_path), "--url", url]) == 2


def test_the_usual_model_is_downloaded_to_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr("helixfold.weights.files.download", lambda *models, **named: given.extend([models, named]))
    assert main(["weights", "download"]) == 0
    assert given == [(("model_1_ptm",),), {"directory": None, "url": None}]
