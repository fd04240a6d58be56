"""Global attention within rows: each row has one averaged query per head, and one head of keys and values."""

from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.attention import attention
from helixfold.ops.dispatch import Backend, operator, unsupported_float64_or_empty
from helixfold.ops.linear import layer_norm, linear
from helixfold.ops.precision import to_float32
from helixfold.ops.sizes import plain_is_faster
from helixfold.ops.weights import GlobalAttentionWeights


@operator(
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.global_attention:global_attention_rows",
        unsupported_reason=lambda properties, x, mask, weights, heads: (
            "the query map has a bias"
            if weights.query.bias is not None
            else unsupported_float64_or_empty(properties, x)
        ),
        slower=plain_is_faster,
    )
)
def global_attention(
    x: Float[Tensor, "b n k c"], mask: Float[Tensor, "b n k"], weights: GlobalAttentionWeights, heads: int
) -> Float[Tensor, "b n k c"]:
    """Return the change of every row from attention with the mean of its unmasked elements as the query.

    Layer norm, projections, gate and output map are included. AlphaFold 2, Suppl. Alg. 19.
    """
    x = layer_norm(x, weights.norm)
    # The mean is computed in float32. Adding 1e-10 keeps fully masked rows finite.
    present = mask.to(to_float32(x).dtype)
    mean = einsum(to_float32(x), present, "b n k c, b n k -> b n c") / (present.sum(-1, keepdim=True) + 1e-10)
    queries = rearrange(linear(mean.to(x.dtype), weights.query), "b n (h d) -> b n 1 h d", h=heads)
    keys, values = (rearrange(linear(x, affine), "b n k d -> b n 1 k d") for affine in (weights.key, weights.value))
    attended = rearrange(attention(queries, keys, values, mask), "b n 1 h d -> b n 1 (h d)")
    return linear(attended * linear(x, weights.gate).sigmoid(), weights.out)
