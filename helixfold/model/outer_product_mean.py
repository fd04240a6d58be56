"""The outer product mean, which updates the pair stream from the MSA."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.update import Axis, Update
from helixfold.ops.outer_product import outer_product_mean, outer_product_operand, outer_product_operands
from helixfold.ops.residual import Residual, added


class OuterProductMean(Update):
    """Update edge ij with the outer product of projections of MSA columns i and j, averaged over sequences.

    AlphaFold 2, Suppl. Alg. 10. Row i of the pair stream needs column i of the MSA and, as context, the right
    projection of all columns.
    """

    context_axis: Axis = "columns"
    context_dim = 2
    makes_own_context = True
    reads_context_rows = True
    takes_residual = True

    def __init__(self, c_m: int, c_z: int, c_outer: int) -> None:
        super().__init__()
        self.norm = LayerNorm(c_m)
        self.left = Linear(c_m, c_outer)
        self.right = Linear(c_m, c_outer)
        self.out = Linear(c_outer * c_outer, c_z, init="zeros")

    def context(
        self, columns: Float[Tensor, "b j s c_m"], mask: Float[Tensor, "b j s"]
    ) -> tuple[Float[Tensor, "b s j c"], Float[Tensor, "b s j"]]:
        """Return the right projections of MSA columns and their mask, with sequences first."""
        right = outer_product_operand(columns, mask, self.norm.affine, self.right.affine)
        return _sequences_last(rearrange(right, "b j s c -> b s j c")), rearrange(mask, "b j s -> b s j")

    def forward(
        self,
        pair: Float[Tensor, "b i j c_z"],
        pair_mask: Float[Tensor, "b i j"],
        context: tuple[Float[Tensor, "b s j c"], Float[Tensor, "b s j"]] | None,
        columns: Float[Tensor, "b i s c_m"],
        mask: Float[Tensor, "b i s"],
        *,
        residual: Residual | None = None,
    ) -> Float[Tensor, "b i j c_z"]:
        """Return the change of rows of the pair from MSA `columns`, or with `residual` the sum of both."""
        norm, left_map, right_map = self.norm.affine, self.left.affine, self.right.affine
        if context is None:
            left, right = outer_product_operands(columns, mask, norm, left_map, right_map)
            context = _sequences_last(right), rearrange(mask, "b j s -> b s j")
        else:
            left = outer_product_operand(columns, mask, norm, left_map)
        return added(residual, outer_product_mean, left, context[0], mask, context[1], self.out.affine)


def _sequences_last(right: Float[Tensor, "b s j c"]) -> Float[Tensor, "b s j c"]:
    """Return the right operand with sequences last in memory, the order in which matrix products read it.

    Otherwise every slab would copy it.
    """
    return rearrange(rearrange(right, "b s j c -> b j c s").contiguous(), "b j c s -> b s j c")
