"""Names of the parameters that only AlphaFold-Multimer's network has."""

from helixfold.config import TemplateConfig, TriangleProjections
from helixfold.weights.conversion import Axes, head_bias, to_heads
from helixfold.weights.parameter_names import ModulePath, ParameterNames, linears, norms, stacked
from helixfold.weights.update_table import pair_updates

# A map of one number: DeepMind's weight has no axis for it.
_OF_ONE_NUMBER = Axes("o", "o 1")


def templates(root: ModulePath, config: TemplateConfig, projections: TriangleProjections) -> list[ParameterNames]:
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
        *stacked(pair_updates(block, "", config.pair_heads, projections), config.blocks),
        *norms(one, ("norm", "output_layer_norm", "template_pair_stack.layer_norm")),
        *linears(embedder, ("out", "template_embedding/output_linear", "linear_t")),
        *linears(
            angles,
            ("linear_1", "template_single_embedding", "template_single_embedder"),
            ("linear_2", "template_projection", "template_projector"),
        ),
    ]


def point_attention(attention: ModulePath, heads: int) -> list[ParameterNames]:
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
