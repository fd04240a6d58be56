"""The outer product mean, through which the MSA updates the pair stream."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.update import Axis, Update
from helixfold.ops.outer_product import outer_product_mean, outer_product_operand


class OuterProductMean(Update):
    """Update edge ij with the outer product of MSA columns i and j, averaged over sequences.

    AlphaFold 2, Suppl. Alg. 10. Row i of the pair stream needs column i of the MSA and, as context, the right
    projection of all columns.
    """

    context_axis: Axis = "columns"
    context_dim = 2
    reads_context_rows = True

    def __init__(self, c_m: int, c_z: int, c_outer: int) -> None:
        super().__init__()
        self.norm = LayerNorm(c_m)
        self.left = Linear(c_m, c_outer)
        self.right = Linear(c_m, c_outer)
        self.out = Linear(c_outer * c_outer, c_z, init="zeros")

    def context(
        self, columns: Float[Tensor, "b j s c_m"], mask: Float[Tensor, "b j s"]
    ) -> tuple[Float[Tensor, "b s j c"], Float[Tensor, "b s j"]]:
        right = outer_product_operand(columns, mask, self.norm.affine, self.right.affine)
        # Sequences come last in memory, as the matrix products read them; otherwise every slab would copy the context.
        right = rearrange(right, "b j s c -> b j c s").contiguous()
        return rearrange(right, "b j c s -> b s j c"), rearrange(mask, "b j s -> b s j")

    def forward(
        self,
        pair: Float[Tensor, "b i j c_z"],
        pair_mask: Float[Tensor, "b i j"],
        context: tuple[Float[Tensor, "b s j c"], Float[Tensor, "b s j"]],
        columns: Float[Tensor, "b i s c_m"],
        mask: Float[Tensor, "b i s"],
    ) -> Float[Tensor, "b i j c_z"]:
        right, right_mask = context
        left = outer_product_operand(columns, mask, self.norm.affine, self.left.affine)
        return outer_product_mean(left, right, mask, right_mask, self.out.affine)
