import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from helixfold.model.config import ModelConfig, StackConfig, StructureConfig
from helixfold.model.presets import PRESETS, preset
from helixfold.weights import alphafold, openfold
from helixfold.weights.conversion import ParameterMapping, differences
from helixfold.weights.load import file_shapes, model_shapes

DISTINCT = ("model_1", "model_1_ptm", "model_3", "model_3_ptm", "model_1_multimer_v2", "model_1_multimer_v3")
SAME_AS = {"model_2": "model_1", "model_4": "model_3", "model_5": "model_3"}


def manifest_of(name: str) -> str:
    """The published model whose arrays have the same names and shapes."""
    if "multimer" in name:
        return "model_1_multimer_v3" if name.endswith("_v3") else "model_1_multimer_v2"
    monomer = name.removesuffix("_ptm")
    return SAME_AS.get(monomer, monomer) + ("_ptm" if name.endswith("_ptm") else "")


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("model_")])
def test_names_and_shapes_equal_deepminds_manifest(name: str, reference: Path) -> None:
    manifest = json.loads((reference / "manifests" / f"{manifest_of(name)}.json").read_text())
    expected = {key: tuple(shape) for key, shape in manifest.items()}
    assert differences(expected, file_shapes(preset(name).model, "npz")) == ""


def test_model_1_ptm_has_the_published_size() -> None:
    shapes = model_shapes(preset("model_1_ptm").model)
    assert len(shapes) == 4630
    assert sum(_size(shape) for shape in shapes.values()) == 93_237_338


@pytest.mark.parametrize("name", DISTINCT)
def test_all_formats_hold_the_same_number_of_parameters(name: str) -> None:
    config = preset(name).model
    sizes = {
        sum(_size(shape) for shape in shapes.values())
        for shapes in (model_shapes(config), file_shapes(config, "npz"), file_shapes(config, "pt"))
    }
    assert len(sizes) == 1


@pytest.mark.parametrize("name", [*DISTINCT, "tiny", "tiny_multimer"])
@pytest.mark.parametrize("rows", [alphafold.rows, openfold.rows])
def test_every_name_stands_in_exactly_one_row(name: str, rows: object) -> None:
    config = preset(name).model
    table: tuple[ParameterMapping, ...] = rows(config)
    ours = [each for row in table for each in row.ours]
    theirs = [each for row in table for each in row.theirs]
    assert sorted(ours) == sorted(model_shapes(config))
    assert len(theirs) == len(set(theirs))


def test_fused_tensors_hold_query_then_key_then_value() -> None:
    config = preset("tiny").model
    fused = [row for row in (*alphafold.rows(config), *openfold.rows(config)) if len(row.theirs) > 1]
    assert {row.ours[0].rsplit(".", 2)[-2] for row in fused} == {"qkv"}
    for row in fused:
        order = [re.search(r"(?:linear_|//)([qkv])", name) for name in row.theirs]
        assert [letter and letter[1] for letter in order] == ["q", "k", "v"]


def test_fused_triangles_of_incoming_edges_hold_openfolds_operands_in_its_own_order() -> None:
    """DeepMind's left operand of incoming edges is OpenFold's b, as in the files that have them apart."""
    config = preset("tiny_multimer").model
    sides = {}
    for program in (alphafold, openfold):
        for row in program.rows(config):
            if row.parts == 2 and row.ours[0].startswith("evoformer.blocks.0") and row.ours[0].endswith("weight"):
                direction = "incoming" if "incoming" in row.ours[0] else "outgoing"
                sides[program, direction] = [name.rsplit(".", 2)[-2].removesuffix("_gate") for name in row.ours[:2]]
    assert sides == {
        (alphafold, "outgoing"): ["left", "right"],
        (alphafold, "incoming"): ["left", "right"],
        (openfold, "outgoing"): ["left", "right"],
        (openfold, "incoming"): ["right", "left"],
    }


def test_depth_comes_from_the_config() -> None:
    config = ModelConfig(
        evoformer=StackConfig(blocks=3),
        extra_msa=StackConfig(blocks=1, c_m=64),
        structure=StructureConfig(angle_blocks=3),
    )
    shapes = file_shapes(config, "npz")
    assert shapes[f"{alphafold.SCOPE}/evoformer/evoformer_iteration/msa_transition/transition1//bias"] == (3, 1024)
    assert shapes[f"{alphafold.SCOPE}/evoformer/extra_msa_stack/msa_transition/transition1//bias"] == (1, 256)
    assert f"{alphafold.SCOPE}/structure_module/fold_iteration/rigid_sidechain/resblock2_2//bias" in shapes


def test_heads_come_from_the_config() -> None:
    config = preset("model_1").model
    assert config.template is not None
    other = replace(config, template=replace(config.template, attention_heads=8))
    name = f"{alphafold.SCOPE}/evoformer/template_embedding/attention//query_w"
    assert file_shapes(config, "npz")[name] == (128, 4, 16)
    assert file_shapes(other, "npz")[name] == (128, 8, 8)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
