import filecmp
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.io.errors import InputError
from helixfold.model.presets import preset
from helixfold.weights import alphafold, openfold
from helixfold.weights.load import load_weights, model_shapes
from helixfold.weights.npz import open_npz, write_npz
from helixfold.weights.untrained import untrained_model
from tests.parity import parameters
from tests.parity.cases import DATA, case_config, config_from_deepmind

CASES = sorted(path.parent for path in DATA.glob("*/params_manifest.json"))
TINY = preset("tiny").model


def assert_round_trip(folder: Path) -> None:
    """Import and export give back every array of a case: names, types, shapes and bits."""
    arrays = parameters.from_manifest(folder / "params_manifest.json")
    meta = json.loads((folder / "meta.json").read_text())
    config = case_config(meta.get("spec", {}).get("channels", "full"), meta["config"])
    state = alphafold.to_state_dict(arrays, config)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == model_shapes(config)
    assert all(tensor.is_contiguous() for tensor in state.values())
    back = alphafold.from_state_dict(state, config)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype == np.float32
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_export_of_import_is_bit_equal(folder: Path) -> None:
    assert_round_trip(folder)


@pytest.mark.parametrize("name", ["monomer_ptm_full", "monomer_ptm_loss"])
def test_export_of_import_is_bit_equal_for_the_larger_cases(name: str, reference: Path) -> None:
    assert_round_trip(reference / "cases" / name)


def test_a_file_of_deepmind_is_written_again_byte_by_byte(reference: Path, tmp_path: Path) -> None:
    folder = reference / "cases" / "monomer_ptm_tiny"
    config = config_from_deepmind(json.loads((folder / "meta.json").read_text())["config"])
    source, target = tmp_path / "source.npz", tmp_path / "target.npz"
    np.savez(source, **parameters.from_manifest(folder / "params_manifest.json"))
    write_npz(target, alphafold.from_state_dict(load_weights(source, config), config))
    assert target.read_bytes() == source.read_bytes()


def test_import_of_export_is_bit_equal() -> None:
    state = untrained_model(TINY, seed=1).state_dict()
    back = alphafold.to_state_dict(alphafold.from_state_dict(state, TINY), TINY)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_exported_arrays_share_no_memory_with_the_model() -> None:
    state = untrained_model(TINY, seed=1).state_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    for array in alphafold.from_state_dict(state, TINY).values():
        array.fill(1)
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_a_missing_array_is_refused() -> None:
    arrays = alphafold.from_state_dict(untrained_model(TINY, seed=1).state_dict(), TINY)
    del arrays[f"{alphafold.SCOPE}/evoformer/single_activations//bias"]
    with pytest.raises(InputError, match=r"1 array \(.*single_activations//bias\) is missing"):
        alphafold.to_state_dict(arrays, TINY)


@pytest.mark.long
@pytest.mark.parametrize("name", ["model_1_ptm", "model_1_multimer_v3"])
def test_a_full_size_file_keeps_every_bit(name: str, reference: Path, tmp_path: Path) -> None:
    config = preset(name).model
    source, target, checkpoint = (tmp_path / file for file in ("source.npz", "target.npz", "openfold.pt"))
    shapes = json.loads((reference / "manifests" / f"{name}.json").read_text())
    random = np.random.default_rng(7)
    np.savez(source, **{name: random.random(shapes[name], np.float32) for name in sorted(shapes)})
    if name == "model_1_ptm":
        # DeepMind's own file has exactly this size.
        assert source.stat().st_size == 373_103_340
    with open_npz(source) as arrays:
        state = alphafold.to_state_dict(arrays, config)
    openfold.write_pt(checkpoint, openfold.from_state_dict(state, config))
    state = load_weights(checkpoint, config)
    write_npz(target, alphafold.from_state_dict(state, config))
    assert filecmp.cmp(target, source, shallow=False)
    with open_npz(target) as written:
        assert written.keys() == shapes.keys()
