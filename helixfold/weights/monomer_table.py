"""Names of the parameters that only AlphaFold 2's network for single chains has."""

from helixfold.config import TemplateConfig, TriangleProjections
from helixfold.weights.conversion import to_heads
from helixfold.weights.parameter_names import ModulePath, ParameterNames, linears, norms, stacked
from helixfold.weights.update_table import attention_output, pair_updates


def templates(root: ModulePath, config: TemplateConfig, projections: TriangleProjections) -> list[ParameterNames]:
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
        *stacked(pair_updates(block, "", config.pair_heads, projections), config.blocks),
        attention.parameter("query.weight", "query_w", "linear_q.weight", head_axes),
        attention.parameter("key.weight", "key_w", "linear_k.weight", head_axes),
        attention.parameter("value.weight", "value_w", "linear_v.weight", head_axes),
        *attention_output(attention, config.attention_heads),
    ]


def point_attention(attention: ModulePath, heads: int) -> list[ParameterNames]:
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
