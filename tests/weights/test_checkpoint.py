import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from data_pipeline.io.errors import InputError
from helixfold.model.config import ModelConfig, StackConfig
from helixfold.model.presets import preset
from helixfold.weights.checkpoint import load_checkpoint, read_header, save_checkpoint
from helixfold.weights.load import load_weights
from helixfold.weights.untrained import untrained_model

CONFIG = {"c_z": 8, "nested": {"outer_product": "end", "dropout": 0.25, "none": None}}


def small_state() -> dict[str, Tensor]:
    return {"a.weight": torch.randn(3, 4), "a.bias": torch.randn(3), "half": torch.randn(5).bfloat16()}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, small_state(), CONFIG)
    return path


def test_state_and_settings_come_back_exactly(tmp_path: Path) -> None:
    state = small_state() | {"turned": torch.randn(4, 3).T}
    save_checkpoint(tmp_path / "x.safetensors", state, CONFIG)
    loaded, config = load_checkpoint(tmp_path / "x.safetensors")
    assert config == CONFIG
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) and loaded[name].dtype == state[name].dtype for name in state)


def test_header_tells_settings_and_shapes(saved: Path) -> None:
    header = read_header(saved)
    assert header.config == CONFIG
    assert header.shapes == {"a.weight": (3, 4), "a.bias": (3,), "half": (5,)}


def test_equal_parameters_give_equal_bytes_in_every_process(tmp_path: Path) -> None:
    # The library's metadata comes in an order of chance: eight files of seven entries would hardly agree by luck.
    state, files = small_state(), [tmp_path / f"{number}.safetensors" for number in range(8)]
    for file in files:
        save_checkpoint(file, state, CONFIG, {"étude": "€"}, descends_from="small")
    assert len({file.read_bytes() for file in files}) == 1
    header = read_header(files[0])
    assert (header.use, header.descends_from) == ({"étude": "€"}, "small")
    assert load_checkpoint(files[0])[0].keys() == state.keys()


def test_a_failed_save_leaves_the_old_file_alone(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        save_checkpoint(saved, small_state(), {"rate": float("nan")})
    shared = torch.zeros(4)
    with pytest.raises(RuntimeError, match="share memory"):
        save_checkpoint(saved, {"a": shared, "b": shared}, CONFIG)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_files_can_be_read_by_those_who_may(saved: Path) -> None:
    plain = saved.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_one_changed_bit_is_noticed(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-1] ^= 1
    saved.write_bytes(content)
    with pytest.raises(InputError, match="checksum"):
        load_checkpoint(saved)


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        (None, "was not written by helixfold"),
        ({"format": "pt"}, "was not written by helixfold"),
        ({"format": "helixfold"}, "format version none"),
        ({"format": "helixfold", "version": "2"}, "format version 2"),
        ({"format": "helixfold", "version": "1"}, "not a complete"),
        ({"format": "helixfold", "version": "1", "config": "[" * 100_000}, "not a complete"),
        ({"format": "helixfold", "version": "1", "config": "[1]"}, "not a JSON object"),
        ({"format": "helixfold", "version": "1", "config": "{}"}, "checksum"),
    ],
)
def test_other_files_are_refused(metadata: dict[str, str] | None, word: str, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises(InputError, match=word):
        load_checkpoint(tmp_path / "x.safetensors")


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 8 + b"{}", b"PK\x03\x04" + bytes(100)])
def test_other_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(InputError):
        load_checkpoint(tmp_path / "x.safetensors")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_checkpoint(tmp_path / "x.safetensors")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mangled_file_is_refused_or_read(data: st.DataObject, saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    mangled = saved.with_name("mangled.safetensors")
    mangled.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    said = ""
    try:
        load_checkpoint(mangled)
    except InputError as error:
        said = str(error)
    assert said.isprintable()


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    config = preset("tiny").model
    path = tmp_path / "x.safetensors"

    def placed(stack: StackConfig) -> StackConfig:
        return replace(stack, outer_product="end")

    other = replace(config, evoformer=placed(config.evoformer), extra_msa=placed(config.extra_msa))
    save_checkpoint(path, untrained_model(config, seed=0).state_dict(), other.to_dict())
    with pytest.raises(InputError, match=r"evoformer\.outer_product is 'end' there and 'middle' here"):
        load_weights(path, config)


def test_settings_of_training_may_differ(tmp_path: Path) -> None:
    config = preset("tiny").model
    state = untrained_model(config, seed=0).state_dict()
    other = replace(config, evoformer=replace(config.evoformer, msa_dropout=0.0))
    save_checkpoint(tmp_path / "x.safetensors", state, other.to_dict())
    loaded = load_weights(tmp_path / "x.safetensors", config)
    assert all(torch.equal(loaded[name], state[name]) for name in state)


def test_settings_that_are_no_models_are_refused(tmp_path: Path) -> None:
    config = preset("tiny").model
    state = untrained_model(config, seed=0).state_dict()
    save_checkpoint(tmp_path / "x.safetensors", state, {**config.to_dict(), "c_z": "many"})
    with pytest.raises(InputError, match="do not describe a model"):
        load_weights(tmp_path / "x.safetensors", config)


def test_settings_survive_json() -> None:
    config = preset("model_1_ptm").model
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
