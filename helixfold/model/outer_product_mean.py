"""How the MSA writes into the pair stream."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.update import Axis, Update

# Added to the number of sequences that both residues have (DeepMind's program).
COUNT_FLOOR = 1e-3


class OuterProductMean(Update):
    """Update edge ij with the outer product of columns i and j, averaged over sequences (Suppl. Alg. 10).

    A row i of the pair stream is made from column i of the MSA and, as context, the right half of all columns.
    """

    source_axis: Axis = "columns"
    context_dim = 2
    reads_source = True

    def __init__(self, c_m: int, c_z: int, c_outer: int) -> None:
        super().__init__()
        self.c_outer = c_outer
        self.norm = LayerNorm(c_m)
        self.left = Linear(c_m, c_outer)
        self.right = Linear(c_m, c_outer)
        self.out = Linear(c_outer * c_outer, c_z, init="zeros")

    def context(
        self, columns: Float[Tensor, "b j s c_m"], mask: Float[Tensor, "b j s"]
    ) -> tuple[Float[Tensor, "b s j c"], Float[Tensor, "b s j"]]:
        right = self.right(self.norm(columns)) * mask[..., None].to(columns.dtype)
        return rearrange(right, "b j s c -> b s j c"), rearrange(mask, "b j s -> b s j")

    def forward(
        self,
        pair: Float[Tensor, "b i j c_z"],
        pair_mask: Float[Tensor, "b i j"],
        context: tuple[Float[Tensor, "b s j c"], Float[Tensor, "b s j"]],
        columns: Float[Tensor, "b i s c_m"],
        mask: Float[Tensor, "b i s"],
    ) -> Float[Tensor, "b i j c_z"]:
        right, right_mask = context
        left = self.left(self.norm(columns)) * mask[..., None].to(columns.dtype)
        # One matrix product: rows (i c), columns (j d), summed over sequences.
        outer = rearrange(left, "b i s c -> b (i c) s") @ rearrange(right, "b s j d -> b s (j d)")
        outer = rearrange(outer, "b (i c) (j d) -> b i j (c d)", c=self.c_outer, d=self.c_outer)
        count = mask.float() @ right_mask.float()
        return self.out(outer) / (count + COUNT_FLOOR)[..., None].to(pair.dtype)

    def workspace(self, rows: int, channels: int) -> int:
        return rows * (2 * self.c_outer**2 + 3 * channels)
