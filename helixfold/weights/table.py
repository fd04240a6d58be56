"""Table of all parameters with their names in our model, DeepMind's files and OpenFold's checkpoints."""

from collections.abc import Callable
from typing import NamedTuple

from helixfold.config import Method, ModelConfig, TemplateConfig, TriangleProjections
from helixfold.weights import monomer_table, multimer_table
from helixfold.weights.parameter_names import ModulePath, ParameterNames, linears, norms, stacked
from helixfold.weights.update_table import evoformer_block


class MethodNames(NamedTuple):
    """Names in which DeepMind's two networks differ."""

    relative_position: str  # of DeepMind's modules
    backbone_update: str
    templates: Callable[[ModulePath, TemplateConfig, TriangleProjections], list[ParameterNames]]
    point_attention: Callable[[ModulePath, int], list[ParameterNames]]


_METHODS: dict[Method, MethodNames] = {
    "monomer": MethodNames(
        "pair_activiations", "affine_update", monomer_table.templates, monomer_table.point_attention
    ),
    "multimer": MethodNames(
        "~_relative_encoding/position_activations",
        "quat_rigid/rigid",
        multimer_table.templates,
        multimer_table.point_attention,
    ),
}


def table(config: ModelConfig) -> tuple[ParameterNames, ...]:
    """Return the names of all parameters of a model with these settings."""
    root, method = ModulePath("", "", ""), _METHODS[config.method]
    rows = [*_embedders(root, method), *_structure_module(root, config, method), *_heads(root, config)]
    if config.template:
        rows += method.templates(root, config.template, config.triangle_projections)
    for name, alphafold, stack, global_columns in (
        ("extra_msa_stack", "extra_msa_stack", config.extra_msa, True),
        ("evoformer", "evoformer_iteration", config.evoformer, False),
    ):
        block = root.child(f"{name}.blocks.*", f"evoformer/{alphafold}", f"{name}.blocks.*")
        updates = evoformer_block(block, stack, config.triangle_projections, global_columns=global_columns)
        rows += stacked(updates, stack.blocks)
    return tuple(rows)


def _embedders(root: ModulePath, method: MethodNames) -> list[ParameterNames]:
    start = root.child("input_embedder", "evoformer", "input_embedder")
    recycled = root.child("recycling_embedder", "evoformer", "recycling_embedder")
    return [
        *linears(
            start,
            ("msa", "preprocess_msa", "linear_msa_m"),
            ("target", "preprocess_1d", "linear_tf_m"),
            ("left", "left_single", "linear_tf_z_i"),
            ("right", "right_single", "linear_tf_z_j"),
            ("relative_position", method.relative_position, "linear_relpos"),
        ),
        *norms(
            recycled,
            ("norm_msa", "prev_msa_first_row_norm", "layer_norm_m"),
            ("norm_pair", "prev_pair_norm", "layer_norm_z"),
        ),
        *linears(recycled, ("distances", "prev_pos_linear", "linear")),
        *linears(
            root,
            ("extra_msa_embedder.linear", "evoformer/extra_msa_activations", "extra_msa_embedder.linear"),
            ("single", "evoformer/single_activations", "evoformer.linear"),
        ),
    ]


def _structure_module(root: ModulePath, config: ModelConfig, method: MethodNames) -> list[ParameterNames]:
    structure = root.child("structure_module", "structure_module", "structure_module")
    fold = structure.child("", "fold_iteration", "")
    attention = fold.child("attention", "invariant_point_attention", "ipa")
    angles = fold.child("angles", "rigid_sidechain", "angle_resnet")
    # haiku numbers modules of one name from the second on: resblock1, resblock1_1, ...
    blocks = [(block, f"_{block}" if block else "") for block in range(config.structure.angle_blocks)]
    return [
        *norms(
            structure,
            ("norm_single", "single_layer_norm", "layer_norm_s"),
            ("norm_pair", "pair_layer_norm", "layer_norm_z"),
        ),
        *linears(structure, ("initial", "initial_projection", "linear_in")),
        *method.point_attention(attention, config.structure.heads),
        *norms(
            fold,
            ("norm_attention", "attention_layer_norm", "layer_norm_ipa"),
            ("norm_transition", "transition_layer_norm", "transition.layer_norm"),
        ),
        *linears(
            fold,
            ("transition.linear_1", "transition", "transition.layers.0.linear_1"),
            ("transition.linear_2", "transition_1", "transition.layers.0.linear_2"),
            ("transition.linear_3", "transition_2", "transition.layers.0.linear_3"),
            ("backbone_update", method.backbone_update, "bb_update.linear"),
        ),
        *linears(
            angles,
            ("current", "input_projection", "linear_in"),
            ("initial", "input_projection_1", "linear_initial"),
            *(
                (f"blocks.{block}.linear_{layer}", f"resblock{layer}{suffix}", f"layers.{block}.linear_{layer}")
                for block, suffix in blocks
                for layer in (1, 2)
            ),
            ("out", "unnormalized_angles", "linear_out"),
        ),
    ]


def _heads(root: ModulePath, config: ModelConfig) -> list[ParameterNames]:
    heads = root.child("heads", "", "aux_heads")
    lddt = heads.child("lddt", "predicted_lddt_head", "plddt")
    rows = [
        *linears(
            heads,
            ("distogram.linear", "distogram_head/half_logits", "distogram.linear"),
            ("masked_msa.linear", "masked_msa_head/logits", "masked_msa.linear"),
            (
                "experimentally_resolved.linear",
                "experimentally_resolved_head/logits",
                "experimentally_resolved.linear",
            ),
        ),
        *norms(lddt, ("norm", "input_layer_norm", "layer_norm")),
        *linears(
            lddt, ("linear_1", "act_0", "linear_1"), ("linear_2", "act_1", "linear_2"), ("out", "logits", "linear_3")
        ),
    ]
    if config.heads.aligned_error:
        rows += linears(heads, ("aligned_error.linear", "predicted_aligned_error_head/logits", "tm.linear"))
    return rows
