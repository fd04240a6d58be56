"""Names of all parameters in our model, DeepMind's files and OpenFold's checkpoints.

DeepMind's names omit the common scope `alphafold/alphafold_iteration`; `//` separates a module from its array. In
stacks, `*` is the index of the block. DeepMind has one array for the whole stack, with a leading axis for blocks.
OpenFold's tensors have our axes, but query, key and value are separate there and concatenated in ours.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from helixfold.model.config import Method, ModelConfig, StackConfig, TemplateConfig, TriangleProjections
from helixfold.weights.conversion import IDENTITY, TRANSPOSE, Axes, from_heads, head_bias, to_heads


@dataclass(frozen=True, kw_only=True)
class ParameterNames:
    """Names of one parameter, or of the same parameter in each of `blocks` blocks.

    `axes` converts DeepMind's array. If one program has several arrays for one array of another, these are concatenated
    in the order of the names here. With `reversed_in_openfold`, ours are in reverse order in OpenFold. `blocks` None is
    for a parameter outside of stacks.
    """

    ours: tuple[str, ...]
    alphafold: tuple[str, ...]
    openfold: tuple[str, ...]
    axes: Axes = IDENTITY
    blocks: int | None = None
    reversed_in_openfold: bool = False


class ModulePath(NamedTuple):
    """Path of a module in each of the three programs."""

    ours: str
    alphafold: str
    openfold: str

    def child(self, ours: str, alphafold: str, openfold: str) -> "ModulePath":
        """Return the path of a submodule with these names in the programs; "" means the module itself there."""
        return ModulePath(
            ".".join(filter(None, (self.ours, ours))),
            "/".join(filter(None, (self.alphafold, alphafold))),
            ".".join(filter(None, (self.openfold, openfold))),
        )

    def parameter(self, ours: str, leaf: str, openfold: str, axes: Axes = IDENTITY) -> ParameterNames:
        """Return the names of a parameter of this module; `leaf` is the last part of DeepMind's name."""
        return self.joined(ours, [(leaf, openfold)], axes)

    def joined(self, ours: str, parts: Iterable[tuple[str, str]], axes: Axes) -> ParameterNames:
        """Return the names of a parameter that the other programs split into `parts`.

        A part is the last part of DeepMind's name, and OpenFold's name.
        """
        leaves, names = zip(*parts, strict=True)
        return ParameterNames(
            ours=(f"{self.ours}.{ours}",),
            alphafold=tuple(f"{self.alphafold}//{leaf}" for leaf in leaves),
            openfold=tuple(f"{self.openfold}.{name}" for name in names),
            axes=axes,
        )


def stacked(rows: Iterable[ParameterNames], blocks: int) -> Iterator[ParameterNames]:
    """Yield the parameters of one block as parameters of a stack of `blocks` blocks."""
    return (replace(row, blocks=blocks) for row in rows)


def linears(module: ModulePath, *names: tuple[str, str, str]) -> Iterator[ParameterNames]:
    """Yield the weights and biases of linear submodules with these names (ours, DeepMind's, OpenFold's)."""
    for name in names:
        yield module.child(*name).parameter("weight", "weights", "weight", TRANSPOSE)
        yield module.child(*name).parameter("bias", "bias", "bias")


def norms(module: ModulePath, *names: tuple[str, str, str]) -> Iterator[ParameterNames]:
    """Yield the weights and biases of layer norms with these names (ours, DeepMind's, OpenFold's)."""
    for name in names:
        yield module.child(*name).parameter("weight", "scale", "weight")
        yield module.child(*name).parameter("bias", "offset", "bias")


def _gate_and_output(module: ModulePath, heads: int) -> list[ParameterNames]:
    """Return the names of an attention's gate and output parameters."""
    return [
        module.parameter("gate.weight", "gating_w", "linear_g.weight", to_heads(heads)),
        module.parameter("gate.bias", "gating_b", "linear_g.bias", head_bias(heads)),
        *_attention_output(module, heads),
    ]


def _attention_output(module: ModulePath, heads: int) -> list[ParameterNames]:
    """Return the parameters of the output projection of attention."""
    return [
        module.parameter("out.weight", "output_w", "linear_o.weight", from_heads(heads)),
        module.parameter("out.bias", "output_b", "linear_o.bias"),
    ]


def _self_attention(module: ModulePath, heads: int) -> list[ParameterNames]:
    """Return the names of a self-attention's parameters; query, key and value are one parameter of the network."""
    parts = [(f"{part}_w", f"linear_{part[0]}.weight") for part in ("query", "key", "value")]
    return [module.joined("qkv.weight", parts, to_heads(heads)), *_gate_and_output(module, heads)]


def _global_attention(module: ModulePath, heads: int) -> list[ParameterNames]:
    """Return the names of a global attention's parameters, whose keys and values are the same for all heads."""
    return [
        module.parameter("query.weight", "query_w", "linear_q.weight", to_heads(heads)),
        module.parameter("key.weight", "key_w", "linear_k.weight", TRANSPOSE),
        module.parameter("value.weight", "value_w", "linear_v.weight", TRANSPOSE),
        *_gate_and_output(module, heads),
    ]


def _transition(module: ModulePath) -> list[ParameterNames]:
    """Return the names of a transition's parameters."""
    return [
        *norms(module, ("norm", "input_layer_norm", "layer_norm")),
        *linears(module, ("linear_1", "transition1", "linear_1"), ("linear_2", "transition2", "linear_2")),
    ]


def _triangle_multiplication(module: ModulePath, left: str, right: str) -> list[ParameterNames]:
    """Return the parameters of a triangle multiplication with separate projections to its operands."""
    return [
        *norms(
            module,
            ("norm_in", "layer_norm_input", "layer_norm_in"),
            ("norm_out", "center_layer_norm", "layer_norm_out"),
        ),
        *linears(
            module,
            ("left", "left_projection", f"linear_{left}_p"),
            ("left_gate", "left_gate", f"linear_{left}_g"),
            ("right", "right_projection", f"linear_{right}_p"),
            ("right_gate", "right_gate", f"linear_{right}_g"),
            ("out", "output_projection", "linear_z"),
            ("gate", "gating_linear", "linear_g"),
        ),
    ]


def _fused_triangle_multiplication(module: ModulePath, *, swapped: bool) -> list[ParameterNames]:
    """Return the parameters of a triangle multiplication with one projection to both operands.

    With `swapped`, OpenFold's first operand is DeepMind's second.
    """
    operands = [
        replace(
            module.child("", theirs, openfold).parameter(f"left.{ours}", leaf, ours, axes),
            ours=tuple(f"{module.ours}.{side}{gate}.{ours}" for side in ("left", "right")),
            reversed_in_openfold=swapped,
        )
        for theirs, openfold, gate in (("projection", "linear_ab_p", ""), ("gate", "linear_ab_g", "_gate"))
        for ours, leaf, axes in (("weight", "weights", TRANSPOSE), ("bias", "bias", IDENTITY))
    ]
    return [
        *norms(
            module,
            ("norm_in", "left_norm_input", "layer_norm_in"),
            ("norm_out", "center_norm", "layer_norm_out"),
        ),
        *operands,
        *linears(module, ("out", "output_projection", "linear_z"), ("gate", "gating_linear", "linear_g")),
    ]


def _triangle_attention(module: ModulePath, heads: int) -> list[ParameterNames]:
    """Return the names of the parameters of a triangle attention."""
    return [
        *norms(module, ("norm", "query_norm", "layer_norm")),
        module.parameter("pair_bias.weight", "feat_2d_weights", "linear.weight", TRANSPOSE),
        *_self_attention(module.child("attention", "attention", "mha"), heads),
    ]


def _pair_updates(
    block: ModulePath, openfold: str, heads: int, projections: TriangleProjections
) -> list[ParameterNames]:
    """Return the parameters of the pair updates of a block; `openfold` is OpenFold's submodule with them."""
    multiplication, attention = "triangle_multiplication", "triangle_attention"
    pair = block.child("", "", openfold)
    outgoing = pair.child("triangle_outgoing", f"{multiplication}_outgoing", "tri_mul_out")
    incoming = pair.child("triangle_incoming", f"{multiplication}_incoming", "tri_mul_in")
    # For incoming edges, DeepMind's code swaps the paper's a and b; OpenFold follows the paper.
    if projections == "fused":
        triangles = [
            *_fused_triangle_multiplication(outgoing, swapped=False),
            *_fused_triangle_multiplication(incoming, swapped=True),
        ]
    else:
        triangles = [
            *_triangle_multiplication(outgoing, "a", "b"),
            *_triangle_multiplication(incoming, "b", "a"),
        ]
    return [
        *triangles,
        *_triangle_attention(pair.child("triangle_starting", f"{attention}_starting_node", "tri_att_start"), heads),
        *_triangle_attention(pair.child("triangle_ending", f"{attention}_ending_node", "tri_att_end"), heads),
        *_transition(pair.child("pair_transition", "pair_transition", "pair_transition")),
    ]


def _evoformer_block(
    block: ModulePath, stack: StackConfig, projections: TriangleProjections, *, global_columns: bool
) -> list[ParameterNames]:
    """Return the parameters of a block of the Evoformer, or of the extra-MSA stack with `global_columns`."""
    heads = stack.msa_heads
    row = block.child("row_attention", "msa_row_attention_with_pair_bias", "msa_att_row")
    outer = block.child("outer_product_mean", "outer_product_mean", "outer_product_mean")
    if global_columns:
        column = block.child("column_attention", "msa_column_global_attention", "msa_att_col")
        gather = _global_attention(column.child("", "attention", "global_attention"), heads)
    else:
        column = block.child("column_attention", "msa_column_attention", "msa_att_col._msa_att")
        gather = _self_attention(column.child("attention", "attention", "mha"), heads)
    return [
        *norms(row, ("norm", "query_norm", "layer_norm_m"), ("pair_norm", "feat_2d_norm", "layer_norm_z")),
        row.parameter("pair_bias.weight", "feat_2d_weights", "linear_z.weight", TRANSPOSE),
        *_self_attention(row.child("attention", "attention", "mha"), heads),
        *norms(column, ("norm", "query_norm", "layer_norm_m")),
        *gather,
        *_transition(block.child("msa_transition", "msa_transition", "msa_transition")),
        *norms(outer, ("norm", "layer_norm_input", "layer_norm")),
        *linears(outer, ("left", "left_projection", "linear_1"), ("right", "right_projection", "linear_2")),
        outer.parameter("out.weight", "output_w", "linear_out.weight", from_heads(stack.c_outer)),
        outer.parameter("out.bias", "output_b", "linear_out.bias"),
        *_pair_updates(block, "pair_stack", stack.pair_heads, projections),
    ]


def _monomer_templates(
    root: ModulePath, config: TemplateConfig, projections: TriangleProjections
) -> list[ParameterNames]:
    """Return parameters of the template embedder."""
    templates = root.child("template_embedder", "evoformer", "template_embedder")
    one = templates.child("pair", "template_embedding/single_template_embedding", "")
    block = one.child("blocks.*", "template_pair_stack/__layer_stack_no_state", "template_pair_stack.blocks.*")
    attention = templates.child("attention", "template_embedding/attention", "template_pointwise_att.mha")
    head_axes = to_heads(config.attention_heads)
    return [
        *linears(
            templates,
            ("angles.linear_1", "template_single_embedding", "template_single_embedder.linear_1"),
            ("angles.linear_2", "template_projection", "template_single_embedder.linear_2"),
        ),
        *linears(one, ("linear", "embedding2d", "template_pair_embedder.linear")),
        *norms(one, ("norm", "output_layer_norm", "template_pair_stack.layer_norm")),
        *stacked(_pair_updates(block, "", config.pair_heads, projections), config.blocks),
        attention.parameter("query.weight", "query_w", "linear_q.weight", head_axes),
        attention.parameter("key.weight", "key_w", "linear_k.weight", head_axes),
        attention.parameter("value.weight", "value_w", "linear_v.weight", head_axes),
        *_attention_output(attention, config.attention_heads),
    ]


def _monomer_point_attention(attention: ModulePath, heads: int) -> list[ParameterNames]:
    """Return parameters of invariant point attention."""
    return [
        *linears(
            attention,
            ("query", "q_scalar", "linear_q"),
            ("key_value", "kv_scalar", "linear_kv"),
            ("query_points", "q_point_local", "linear_q_points.linear"),
            ("key_value_points", "kv_point_local", "linear_kv_points.linear"),
            ("pair_bias", "attention_2d", "linear_b"),
            ("out", "output_projection", "linear_out"),
        ),
        attention.parameter("point_weights", "trainable_point_weights", "head_weights"),
    ]


# Axes of a linear map with one input, for which DeepMind's weight has no axis.
_OF_ONE_NUMBER = Axes("o", "o 1")


def _multimer_templates(
    root: ModulePath, config: TemplateConfig, projections: TriangleProjections
) -> list[ParameterNames]:
    """Return parameters of the template embedder."""
    embedder = root.child("template_embedder", "evoformer", "template_embedder")
    one = embedder.child("pair", "template_embedding/single_template_embedding", "")
    block = one.child("blocks.*", "template_embedding_iteration", "template_pair_stack.blocks.*")
    features = one.child("", "", "template_pair_embedder")
    angles = embedder.child("angles", "", "template_single_embedder")
    of_one_number = [
        row
        for ours, number, openfold in (
            ("has_beta", 1, "pseudo_beta_mask_linear"),
            ("x", 4, "x_linear"),
            ("y", 5, "y_linear"),
            ("z", 6, "z_linear"),
            ("has_backbone", 7, "backbone_mask_linear"),
        )
        for module in (features.child(ours, f"template_pair_embedding_{number}", openfold),)
        for row in (
            module.parameter("weight", "weights", "weight", _OF_ONE_NUMBER),
            module.parameter("bias", "bias", "bias"),
        )
    ]
    return [
        *norms(features, ("norm_query", "query_embedding_norm", "query_embedding_layer_norm")),
        *of_one_number,
        *linears(
            features,
            ("distances", "template_pair_embedding_0", "dgram_linear"),
            ("column_type", "template_pair_embedding_2", "aatype_linear_1"),
            ("row_type", "template_pair_embedding_3", "aatype_linear_2"),
            ("query", "template_pair_embedding_8", "query_embedding_linear"),
        ),
        *stacked(_pair_updates(block, "", config.pair_heads, projections), config.blocks),
        *norms(one, ("norm", "output_layer_norm", "template_pair_stack.layer_norm")),
        *linears(embedder, ("out", "template_embedding/output_linear", "linear_t")),
        *linears(
            angles,
            ("linear_1", "template_single_embedding", "template_single_embedder"),
            ("linear_2", "template_projection", "template_projector"),
        ),
    ]


def _multimer_point_attention(attention: ModulePath, heads: int) -> list[ParameterNames]:
    """Return parameters of invariant point attention."""
    scalars, points = (
        [
            attention.child(
                f"{part}{suffix}", f"{part[0]}_{kind}_projection{inner}", f"linear_{part[0]}{suffix}{openfold}"
            )
            for part in ("query", "key", "value")
        ]
        for suffix, kind, inner, openfold in (
            ("", "scalar", "", ""),
            ("_points", "point", "/point_projection", ".linear"),
        )
    )
    return [
        *(module.parameter("weight", "weights", "weight", to_heads(heads)) for module in (*scalars, *points)),
        *(module.parameter("bias", "bias", "bias", head_bias(heads)) for module in points),
        *linears(attention, ("pair_bias", "attention_2d", "linear_b"), ("out", "output_projection", "linear_out")),
        attention.parameter("point_weights", "trainable_point_weights", "head_weights"),
    ]


class MethodNames(NamedTuple):
    """Names and modules in which AlphaFold 2 and AlphaFold-Multimer differ.

    `relative_position` and `backbone_update` are DeepMind's names of modules; the other fields are functions that
    return the names of a module's parameters.
    """

    relative_position: str  # DeepMind's name
    backbone_update: str
    templates: Callable[[ModulePath, TemplateConfig, TriangleProjections], list[ParameterNames]]
    point_attention: Callable[[ModulePath, int], list[ParameterNames]]


_NAMES_OF_METHOD: dict[Method, MethodNames] = {
    "monomer": MethodNames("pair_activiations", "affine_update", _monomer_templates, _monomer_point_attention),
    "multimer": MethodNames(
        "~_relative_encoding/position_activations",
        "quat_rigid/rigid",
        _multimer_templates,
        _multimer_point_attention,
    ),
}


def table(config: ModelConfig) -> tuple[ParameterNames, ...]:
    """Return the names of all parameters of a model with these settings; the blocks of a stack share an entry."""
    root, method = ModulePath("", "", ""), _NAMES_OF_METHOD[config.method]
    rows = [*_embedders(root, method), *_structure_module(root, config, method), *_heads(root, config)]
    if config.template:
        rows += method.templates(root, config.template, config.triangle_projections)
    if config.restraints:  # DeepMind's networks have none; OpenFold's names are AlphaLink's
        rows += linears(
            root.child("restraint_embedder", "evoformer", ""),
            ("value", "restraint_value", "xl_embedder.linear"),
            ("group", "restraint_group", "xl_grouping_embedder.linear"),
        )
    for name, alphafold, stack, global_columns in (
        ("extra_msa_stack", "extra_msa_stack", config.extra_msa, True),
        ("evoformer", "evoformer_iteration", config.evoformer, False),
    ):
        block = root.child(f"{name}.blocks.*", f"evoformer/{alphafold}", f"{name}.blocks.*")
        updates = _evoformer_block(block, stack, config.triangle_projections, global_columns=global_columns)
        rows += stacked(updates, stack.blocks)
    return tuple(rows)


def _embedders(root: ModulePath, method: MethodNames) -> list[ParameterNames]:
    """Return the names of the parameters before the Evoformer blocks except templates, and of the single projection."""
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
    """Return the names of the structure module's parameters."""
    structure = root.child("structure_module", "structure_module", "structure_module")
    fold = structure.child("", "fold_iteration", "")
    attention = fold.child("attention", "invariant_point_attention", "ipa")
    angles = fold.child("angles", "rigid_sidechain", "angle_resnet")
    # haiku adds a number to repeated names, from the second module on: resblock1, resblock1_1, ...
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
    """Return the names of the parameters of the heads; the aligned-error head is optional."""
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
