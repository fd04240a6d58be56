"""Names of the parameters of all updates, which every block of every stack is made of."""

from dataclasses import replace

from helixfold.config import StackConfig, TriangleProjections
from helixfold.weights.conversion import IDENTITY, TRANSPOSE, from_heads, head_bias, to_heads
from helixfold.weights.parameter_names import ModulePath, ParameterNames, linears, norms


def _gate_and_output(module: ModulePath, heads: int) -> list[ParameterNames]:
    return [
        module.parameter("gate.weight", "gating_w", "linear_g.weight", to_heads(heads)),
        module.parameter("gate.bias", "gating_b", "linear_g.bias", head_bias(heads)),
        *attention_output(module, heads),
    ]


def attention_output(module: ModulePath, heads: int) -> list[ParameterNames]:
    """Return parameters of the map from an attention's heads."""
    return [
        module.parameter("out.weight", "output_w", "linear_o.weight", from_heads(heads)),
        module.parameter("out.bias", "output_b", "linear_o.bias"),
    ]


def self_attention(module: ModulePath, heads: int) -> list[ParameterNames]:
    parts = [(f"{part}_w", f"linear_{part[0]}.weight") for part in ("query", "key", "value")]
    return [module.joined("qkv.weight", parts, to_heads(heads)), *_gate_and_output(module, heads)]


def _global_attention(module: ModulePath, heads: int) -> list[ParameterNames]:
    return [
        module.parameter("query.weight", "query_w", "linear_q.weight", to_heads(heads)),
        module.parameter("key.weight", "key_w", "linear_k.weight", TRANSPOSE),
        module.parameter("value.weight", "value_w", "linear_v.weight", TRANSPOSE),
        *_gate_and_output(module, heads),
    ]


def _transition(module: ModulePath) -> list[ParameterNames]:
    return [
        *norms(module, ("norm", "input_layer_norm", "layer_norm")),
        *linears(module, ("linear_1", "transition1", "linear_1"), ("linear_2", "transition2", "linear_2")),
    ]


def _triangle_multiplication(module: ModulePath, left: str, right: str) -> list[ParameterNames]:
    """Return parameters of a triangle multiplication with separate projections to its operands."""
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
    """Return parameters of a triangle multiplication whose files have one projection to both operands.

    `swapped` says that OpenFold's first operand is DeepMind's second.
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
    return [
        *norms(module, ("norm", "query_norm", "layer_norm")),
        module.parameter("pair_bias.weight", "feat_2d_weights", "linear.weight", TRANSPOSE),
        *self_attention(module.child("attention", "attention", "mha"), heads),
    ]


def pair_updates(
    block: ModulePath, openfold: str, heads: int, projections: TriangleProjections
) -> list[ParameterNames]:
    """Return parameters of the pair updates of Evoformer and template blocks, which OpenFold has in a submodule."""
    multiplication, attention = "triangle_multiplication", "triangle_attention"
    pair = block.child("", "", openfold)
    outgoing = pair.child("triangle_outgoing", f"{multiplication}_outgoing", "tri_mul_out")
    incoming = pair.child("triangle_incoming", f"{multiplication}_incoming", "tri_mul_in")
    # DeepMind's incoming edges swap the roles that the paper gives to a and b; OpenFold kept the paper's.
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


def evoformer_block(
    block: ModulePath, stack: StackConfig, projections: TriangleProjections, *, global_columns: bool
) -> list[ParameterNames]:
    """Return parameters of a block of the Evoformer, or of the extra-MSA stack with `global_columns`."""
    heads = stack.msa_heads
    row = block.child("row_attention", "msa_row_attention_with_pair_bias", "msa_att_row")
    outer = block.child("outer_product_mean", "outer_product_mean", "outer_product_mean")
    if global_columns:
        column = block.child("column_attention", "msa_column_global_attention", "msa_att_col")
        gather = _global_attention(column.child("", "attention", "global_attention"), heads)
    else:
        column = block.child("column_attention", "msa_column_attention", "msa_att_col._msa_att")
        gather = self_attention(column.child("attention", "attention", "mha"), heads)
    return [
        *norms(row, ("norm", "query_norm", "layer_norm_m"), ("pair_norm", "feat_2d_norm", "layer_norm_z")),
        row.parameter("pair_bias.weight", "feat_2d_weights", "linear_z.weight", TRANSPOSE),
        *self_attention(row.child("attention", "attention", "mha"), heads),
        *norms(column, ("norm", "query_norm", "layer_norm_m")),
        *gather,
        *_transition(block.child("msa_transition", "msa_transition", "msa_transition")),
        *norms(outer, ("norm", "layer_norm_input", "layer_norm")),
        *linears(outer, ("left", "left_projection", "linear_1"), ("right", "right_projection", "linear_2")),
        outer.parameter("out.weight", "output_w", "linear_out.weight", from_heads(stack.c_outer)),
        outer.parameter("out.bias", "output_b", "linear_out.bias"),
        *pair_updates(block, "pair_stack", stack.pair_heads, projections),
    ]
