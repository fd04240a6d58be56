"""Gated self-attention within rows, used by MSA attention and triangle attention."""

from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.layers import Linear, ToHeads
from helixfold.ops.residual import Residual, added
from helixfold.ops.self_attention import self_attention
from helixfold.ops.weights import Affine, SelfAttentionWeights


class SelfAttention(nn.Module):
    """Gated multi-head self-attention within every row, with an optional bias.

    AlphaFold 2, Suppl. Alg. 7 lines 2 to 7, Alg. 8 and Alg. 13 lines 2 to 7. The preceding layer norm belongs to the
    calling update and is passed to `forward`. A bias is added to the logits of all rows of a sample; an affine one is a
    linear map from the layer norm of the input to the bias.
    """

    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # As in HelixFold, query, key and value are computed in one matrix product.
        self.qkv = ToHeads(c, heads, c // heads, maps=3)
        self.gate = Linear(c, c, init="gate")
        self.out = Linear(c, c, init="zeros")

    def forward(
        self,
        x: Float[Tensor, "b n k c"],
        mask: Float[Tensor, "b n k"],
        norm: Affine,
        bias: Float[Tensor, "b h k k"] | Affine | None = None,
        *,
        residual: Residual | None = None,
    ) -> Float[Tensor, "b n k c"]:
        """Return the change of rows, or with `residual` its stream plus dropout mask times change."""
        weights = SelfAttentionWeights(norm, self.qkv.affine, self.gate.affine, self.out.affine)
        return added(residual, self_attention, x, mask, bias, weights, heads=self.heads)
