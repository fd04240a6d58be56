"""Updates of the pair stream: triangle multiplication and triangle attention.

Both come in two directions. With the pair stream turned (its columns as rows), "incoming" is "outgoing" and the
ending node is the starting node, so each is one class and the direction is the axis it is independent along.
"""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.model.attention import SelfAttention
from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.update import Axis, Update


class TriangleMultiplication(Update):
    """Update each edge ij from the two edges it shares with every third residue k.

    AlphaFold 2, Suppl. Alg. 11 (outgoing edges: along rows) and 12 (incoming edges: along columns).
    """

    context_dim = 2

    def __init__(self, c_z: int, c: int, axis: Axis, dropout: float) -> None:
        super().__init__()
        self.axis = self.source_axis = axis
        self.norm_in = LayerNorm(c_z)
        self.left = Linear(c_z, c)
        self.left_gate = Linear(c_z, c, init="gate")
        self.right = Linear(c_z, c)
        self.right_gate = Linear(c_z, c, init="gate")
        self.norm_out = LayerNorm(c)
        self.out = Linear(c, c_z, init="zeros")
        self.gate = Linear(c_z, c_z, init="gate")
        self.dropout_rate = dropout

    def context(
        self, pair: Float[Tensor, "b j k c_z"], mask: Float[Tensor, "b j k"]
    ) -> tuple[Float[Tensor, "b c j k"]]:
        return (self._operand(self.norm_in(pair), mask, self.right, self.right_gate),)

    def forward(
        self,
        pair: Float[Tensor, "b i k c_z"],
        mask: Float[Tensor, "b i k"],
        context: tuple[Float[Tensor, "b c j k"]],
    ) -> Float[Tensor, "b i j c_z"]:
        (right,) = context
        x = self.norm_in(pair)
        left = self._operand(x, mask, self.left, self.left_gate)
        product = rearrange(left @ right.mT, "b c i j -> b i j c")
        return self.out(self.norm_out(product)) * self.gate(x).sigmoid()

    def workspace(self, rows: int, channels: int) -> int:
        return 8 * rows * channels

    @staticmethod
    def _operand(
        x: Float[Tensor, "b i k c_z"], mask: Float[Tensor, "b i k"], project: Linear, gate: Linear
    ) -> Float[Tensor, "b c i k"]:
        # Channels lead, so that the sum over k is one matrix product per channel.
        gated = project(x) * gate(x).sigmoid() * mask[..., None].to(x.dtype)
        return rearrange(gated, "b i k c -> b c i k").contiguous()


class TriangleAttention(Update):
    """Update each edge ij from the other edges of its starting node i, steered by the third edge jk.

    AlphaFold 2, Suppl. Alg. 13 (starting node: along rows) and 14 (ending node: along columns).
    """

    context_dim = 2

    def __init__(self, c_z: int, heads: int, axis: Axis, dropout: float) -> None:
        super().__init__()
        self.axis = self.source_axis = self.dropout_axis = axis
        self.norm = LayerNorm(c_z)
        self.pair_bias = Linear(c_z, heads, bias=False, init="normal")
        self.attention = SelfAttention(c_z, heads)
        self.dropout_rate = dropout

    def context(
        self, pair: Float[Tensor, "b j k c_z"], mask: Float[Tensor, "b j k"]
    ) -> tuple[Float[Tensor, "b h j k"]]:
        return (rearrange(self.pair_bias(self.norm(pair)), "b j k h -> b h j k").contiguous(),)

    def forward(
        self,
        pair: Float[Tensor, "b i k c_z"],
        mask: Float[Tensor, "b i k"],
        context: tuple[Float[Tensor, "b h j k"]],
    ) -> Float[Tensor, "b i k c_z"]:
        (bias,) = context
        return self.attention(self.norm(pair), mask, bias)

    def workspace(self, rows: int, channels: int) -> int:
        return self.attention.workspace(rows, channels)
