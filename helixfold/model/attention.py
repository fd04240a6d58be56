"""Gated self-attention within rows: the piece that MSA and triangle attention share."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.layers import Linear, ToHeads
from helixfold.ops.attention import attention


class SelfAttention(nn.Module):
    """Multi-head self-attention within every row, with an output gate and an optional bias.

    AlphaFold 2, Suppl. Alg. 7 lines 2 to 7, Alg. 8 and Alg. 13 lines 2 to 7.
    """

    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # Query, key and value in one map: one product instead of three, as HelixFold does.
        self.qkv = ToHeads(c, heads, c // heads, maps=3)
        self.gate = Linear(c, c, init="gate")
        self.out = Linear(c, c, init="zeros")

    def forward(
        self,
        x: Float[Tensor, "b n k c"],
        mask: Float[Tensor, "b n k"],
        bias: Float[Tensor, "b h k k"] | None = None,
    ) -> Float[Tensor, "b n k c"]:
        query, key, value = rearrange(self.qkv(x), "b n k (three h d) -> three b n h k d", three=3, h=self.heads)
        gathered = rearrange(attention(query, key, value, mask, bias), "b n h k d -> b n k (h d)")
        return self.out(gathered * self.gate(x).sigmoid())

    def workspace(self, rows: int, channels: int) -> int:
        """Elements of temporaries for one row of `rows` elements: projections, gate, results; logits are not kept."""
        return 10 * rows * channels
