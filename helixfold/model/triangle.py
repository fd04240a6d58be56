"""Updates of the pair stream: triangle multiplication and triangle attention.

Both have two directions. "Incoming" is "outgoing" on the transposed pair stream, and so is the ending node the starting
node. Each update is therefore one class, whose direction is the axis along which it is independent.
"""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.model.attention import SelfAttention
from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.update import Axis, Side, Update
from helixfold.ops.linear import norm_linear
from helixfold.ops.residual import Residual, added
from helixfold.ops.triangle import triangle_multiplication, triangle_operand, triangle_update
from helixfold.ops.weights import Affine, TriangleOperandWeights, TriangleWeights


class TriangleMultiplication(Update):
    """Update each edge ij from the edges that connect i and j with each third residue k, multiplied and summed over k.

    AlphaFold 2, Suppl. Alg. 11 (outgoing edges: `axis` "rows") and 12 (incoming edges: "columns").
    """

    context_dim = 2
    makes_own_context = True
    takes_residual = True

    def __init__(self, c_z: int, c: int, axis: Axis, dropout: float) -> None:
        super().__init__()
        self.axis = self.context_axis = axis
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
        """Return the right operand from rows of the pair stream, with channels first."""
        weights = TriangleOperandWeights(self.norm_in.affine, self.right.affine, self.right_gate.affine)
        return (triangle_operand(pair, mask, weights),)

    def forward(
        self,
        pair: Float[Tensor, "b i k c_z"],
        mask: Float[Tensor, "b i k"],
        context: tuple[Float[Tensor, "b c j k"]] | None,
        *,
        residual: Residual | None = None,
    ) -> Float[Tensor, "b i j c_z"]:
        """Return the change of rows of the pair, or with `residual` its stream plus dropout mask times change."""
        norm_in, left, left_gate = self.norm_in.affine, self.left.affine, self.left_gate.affine
        weights = TriangleWeights(norm_in, left, left_gate, self.norm_out.affine, self.out.affine, self.gate.affine)
        if context is None:
            return added(residual, triangle_update, pair, mask, self.right.affine, self.right_gate.affine, weights)
        return added(residual, triangle_multiplication, pair, mask, *context, weights)

    # An operand of the whole stream is as large as the stream. The following implements `Factored`, which computes the
    # same update from a few channels at a time.

    @property
    def channels(self) -> int:
        return len(self.left.weight)

    def operand(
        self,
        pair: Float[Tensor, "b i k c_z"],
        mask: Float[Tensor, "b i k"],
        side: Side,
        channels: slice,
    ) -> Float[Tensor, "b c i k"]:
        project, gate = (self.left, self.left_gate) if side == "left" else (self.right, self.right_gate)
        parts = (Affine(linear.weight[channels], linear.bias[channels]) for linear in (project, gate))
        return triangle_operand(pair, mask, TriangleOperandWeights(self.norm_in.affine, *parts))

    def change(
        self, pair: Float[Tensor, "b i j c_z"], products: Float[Tensor, "b i j c"]
    ) -> Float[Tensor, "b i j c_z"]:
        return self.out(self.norm_out(products)) * self.gate(self.norm_in(pair)).sigmoid()


class TriangleAttention(Update):
    """Update each edge ij by attention over the edges ik of its starting node i, biased by the third edges jk.

    AlphaFold 2, Suppl. Alg. 13 (starting node: `axis` "rows") and 14 (ending node: "columns").
    """

    context_dim = 2
    makes_own_context = True
    takes_residual = True

    def __init__(self, c_z: int, heads: int, axis: Axis, dropout: float) -> None:
        super().__init__()
        self.axis = self.context_axis = self.dropout_axis = axis
        self.norm = LayerNorm(c_z)
        self.pair_bias = Linear(c_z, heads, bias=False, init="normal")
        self.attention = SelfAttention(c_z, heads)
        self.dropout_rate = dropout

    def context(
        self, pair: Float[Tensor, "b j k c_z"], mask: Float[Tensor, "b j k"]
    ) -> tuple[Float[Tensor, "b h j k"]]:
        """Return the bias of the logits of each head from rows of the pair stream."""
        bias = norm_linear(pair, self.norm.affine, self.pair_bias.affine)
        return (rearrange(bias, "b j k h -> b h j k").contiguous(),)

    def forward(
        self,
        pair: Float[Tensor, "b i k c_z"],
        mask: Float[Tensor, "b i k"],
        context: tuple[Float[Tensor, "b h j k"]] | None,
        *,
        residual: Residual | None = None,
    ) -> Float[Tensor, "b i k c_z"]:
        """Return the change of rows of the pair, or with `residual` its stream plus dropout mask times change."""
        bias = self.pair_bias.affine if context is None else context[0]
        return self.attention(pair, mask, self.norm.affine, bias, residual=residual)
