import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline.io.errors import InputError
from helixfold.model.config import StackConfig
from helixfold.model.presets import preset
from helixfold.weights.load import file_format, file_shapes, load_weights, matching_presets, read_shapes
from helixfold.weights.npz import write_npz
from helixfold.weights.untrained import untrained_model
from tests.weights.written import write_parameters

TINY = preset("tiny").model
SUFFIXES = (".npz", ".pt", ".safetensors")


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return untrained_model(TINY, seed=5).state_dict()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same_state(suffix: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    loaded = load_weights(write_parameters(tmp_path / f"x{suffix}", state, TINY), TINY)
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) for name in state)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_format_is_recognised_without_its_suffix(suffix: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    shutil.copy(write_parameters(tmp_path / f"x{suffix}", state, TINY), tmp_path / "model.bin")
    assert file_format(tmp_path / "model.bin") == suffix[1:]
    assert load_weights(tmp_path / "model.bin", TINY).keys() == state.keys()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"something else entirely")
    with pytest.raises(InputError, match=r"not a parameter file; expected one of \.npz"):
        load_weights(tmp_path / "model.bin", TINY)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_shapes_are_read_without_numbers(suffix: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    form, shapes = read_shapes(write_parameters(tmp_path / f"x{suffix}", state, TINY))
    assert shapes == file_shapes(TINY, form)
    assert matching_presets(shapes, form) == ("tiny",)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_unknown_and_misshapen_arrays_are_one_error(suffix: str, tmp_path: Path) -> None:
    heads = replace(TINY.heads, lddt_bins=7, aligned_error=False)
    other = replace(TINY, heads=heads, structure=replace(TINY.structure, angle_blocks=3))
    path = write_parameters(tmp_path / f"x{suffix}", untrained_model(other, seed=0).state_dict(), other)
    with pytest.raises(InputError) as refused:
        load_weights(path, TINY)
    text = str(refused.value)
    assert text.startswith(f"{path}: does not fit this model: 2 arrays (")
    missing, unknown, misshapen, advice = text.split("; ")
    assert missing.endswith(" are missing")
    assert re.search(r"aligned_error|aux_heads\.tm", missing)
    assert re.match(r"4 arrays \(.*(resblock1_2|blocks\.2|layers\.2).* are unknown", unknown)
    assert re.match(r"2 arrays \(.*\[7\] instead of \[50\].* are of another shape", misshapen)
    assert advice == "it does not fit any preset"


@pytest.mark.parametrize(
    ("model", "name", "advice"),
    [
        ("model_1", "model_3", "it fits model_3, model_4, model_5: choose one of these presets"),
        ("model_3", "model_1", "it fits model_1, model_2: choose one of these presets"),
        ("model_1", "model_1_ptm", "it fits model_1_ptm, model_2_ptm: choose one of these presets"),
        ("model_1_ptm", "tiny", "it fits tiny: choose this preset"),
        ("model_1_ptm", "tiny_multimer", "it fits tiny_multimer: choose this preset"),
        ("model_1_multimer_v3", "model_1_ptm", "it fits model_1_ptm, model_2_ptm: choose one of these presets"),
        ("model_1_multimer_v3", "model_1_multimer_v2", "model_5_multimer_v2, model_1_multimer, model_2_multimer, "),
        ("model_1_multimer_v2", "model_1_multimer_v3", "it fits model_1_multimer_v3, model_2_multimer_v3, "),
    ],
)
def test_the_preset_that_does_fit_is_named(model: str, name: str, advice: str, tmp_path: Path) -> None:
    config = preset(name).model
    # Numbers take a moment at full size: names and shapes are all that matters, so the file holds the same zeros.
    arrays = {key: np.broadcast_to(np.float16(0), shape) for key, shape in file_shapes(config, "npz").items()}
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError) as refused:
        load_weights(tmp_path / "x.npz", preset(model).model)
    assert advice in str(refused.value)
    assert "\n" not in str(refused.value)


def test_our_own_file_of_another_release_of_multimer_is_refused(tmp_path: Path) -> None:
    """The networks are the same, but the samples that they were trained on are not."""
    config = preset("tiny_multimer").model
    path = write_parameters(tmp_path / "x.safetensors", untrained_model(config, seed=0).state_dict(), config)
    with pytest.raises(InputError, match="triangle_projections is 'fused' there and 'separate' here"):
        load_weights(path, replace(config, triangle_projections="separate"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_numbers_that_are_not_finite_are_refused_by_name(suffix: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    broken = {name: tensor.clone() for name, tensor in state.items()}
    broken["single.bias"][3] = float("nan")
    path = write_parameters(tmp_path / f"x{suffix}", broken, TINY)
    with pytest.raises(
        InputError, match=r"'(.*/single_activations//bias|single\.bias)' has values that are not finite"
    ):
        load_weights(path, TINY)


def test_heads_that_the_model_counts_otherwise_are_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    """The same number of channels in more heads would load and compute something else."""
    assert TINY.template is not None
    other = replace(TINY, template=replace(TINY.template, attention_heads=8))
    for suffix in (".npz", ".safetensors"):
        path = write_parameters(tmp_path / f"x{suffix}", state, TINY)
        with pytest.raises(InputError, match=r"instead of|attention_heads is 4 there and 8 here"):
            load_weights(path, other)


def test_block_order_does_not_matter_to_deepminds_format(state: dict[str, Tensor], tmp_path: Path) -> None:
    def placed(stack: StackConfig) -> StackConfig:
        return replace(stack, outer_product="end")

    other = replace(TINY, evoformer=placed(TINY.evoformer), extra_msa=placed(TINY.extra_msa))
    assert load_weights(write_parameters(tmp_path / "x.npz", state, TINY), other).keys() == state.keys()


@pytest.mark.long
def test_a_full_size_file_needs_little_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    config = preset("model_1_ptm").model
    random = np.random.default_rng(0)
    arrays = {name: random.random(shape, np.float32) for name, shape in file_shapes(config, "npz").items()}
    write_npz(tmp_path / "params.npz", arrays)
    del arrays
    program = (
        "import resource, sys; from helixfold.model.presets import preset; from helixfold.weights import load;"
        "config = preset('model_1_ptm').model; load.file_shapes(config, 'npz');"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; load.load_weights(sys.argv[1], config);"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "params.npz")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1.3 * (tmp_path / "params.npz").stat().st_size
