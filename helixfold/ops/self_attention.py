"""Self-attention within rows, from the stream to its change: layer norm, projections, attention, gate, output map."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.attention import attention
from helixfold.ops.dispatch import Backend, operator, refusal_of_float64_or_nothing
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.linear import linear
from helixfold.ops.weights import SelfAttentionWeights


@operator(
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.self_attention:self_attention_rows",
        refusal=refusal_of_float64_or_nothing,
    )
)
def self_attention(
    x: Float[Tensor, "b n k c"],
    mask: Float[Tensor, "b n k"],
    bias: Float[Tensor, "b h k k"] | None,
    weights: SelfAttentionWeights,
    heads: int,
) -> Float[Tensor, "b n k c"]:
    """Return the change of every row by self-attention, with `bias` added to the logits of all rows of its sample.

    AlphaFold 2, Suppl. Alg. 7, 8 and 13.
    """
    x = layer_norm(x, weights.norm)
    query, key, value = rearrange(linear(x, weights.qkv), "b n k (three h d) -> three b n h k d", three=3, h=heads)
    gates = rearrange(linear(x, weights.gate), "b n k (h d) -> b n h k d", h=heads)
    attended = attention(query, key, value, mask, bias, gates)
    return linear(rearrange(attended, "b n h k d -> b n k (h d)"), weights.out)
