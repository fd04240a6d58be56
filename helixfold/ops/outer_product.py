"""The outer product of two MSA columns, averaged over the sequences that both have, and mapped to an edge."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.dispatch import Backend, Op
from helixfold.ops.linear import Affine, linear

# Added to the number of sequences that both residues have (DeepMind's program).
COUNT_FLOOR = 1e-3


def outer_product_mean(
    left: Float[Tensor, "b i s c"],
    right: Float[Tensor, "b s j d"],
    left_mask: Float[Tensor, "b i s"],
    right_mask: Float[Tensor, "b s j"],
    out: Affine,
) -> Float[Tensor, "b i j c_z"]:
    """AlphaFold 2, Suppl. Alg. 10 lines 3 and 4; `left` and `right` are zero where their masks are."""
    return OUTER_PRODUCT_MEAN(left, right, left_mask, right_mask, out)


def outer_product_mean_reference(
    left: Float[Tensor, "b i s c"],
    right: Float[Tensor, "b s j d"],
    left_mask: Float[Tensor, "b i s"],
    right_mask: Float[Tensor, "b s j"],
    out: Affine,
) -> Float[Tensor, "b i j c_z"]:
    """What `outer_product_mean` means, in plain torch."""
    c, d = left.shape[-1], right.shape[-1]
    # One matrix product: rows (i c), columns (j d), summed over sequences.
    outer = rearrange(left, "b i s c -> b (i c) s") @ rearrange(right, "b s j d -> b s (j d)")
    outer = rearrange(outer, "b (i c) (j d) -> b i j (c d)", c=c, d=d)
    count = left_mask.float() @ right_mask.float()
    return linear(outer, out) / (count + COUNT_FLOOR)[..., None].to(left.dtype)


OUTER_PRODUCT_MEAN = Op("outer_product_mean", Backend(name="reference", run=outer_product_mean_reference))
