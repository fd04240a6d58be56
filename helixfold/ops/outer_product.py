"""The outer product of two MSA columns, averaged over the sequences that both have, and mapped to an edge."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.cpu.outer_product import outer_product_mean_rows
from helixfold.ops.dispatch import Backend, Op, refusal_of_wide_products, refusal_without_triton
from helixfold.ops.linear import Affine, linear

# Of masks that are read in float32 at a time.
_SEQUENCES = 512
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
    return linear(outer, out) / _count(left_mask, right_mask)[..., None].to(left.dtype)


def _count(left_mask: Tensor, right_mask: Tensor) -> Tensor:
    """How many sequences residues i and j both have, and a little more."""
    return left_mask.float() @ right_mask.float() + COUNT_FLOOR


def _by_rows(left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine) -> Tensor:
    count = torch.full((*left.shape[:2], right.shape[2]), COUNT_FLOOR)
    for ours, theirs in zip(left_mask.split(_SEQUENCES, 2), right_mask.split(_SEQUENCES, 1), strict=True):
        count.baddbmm_(ours.float(), theirs.float())
    return outer_product_mean_rows(left, right, count.reciprocal_(), out)


def _refusal_of_rows(left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine) -> str | None:
    if left.dtype == torch.float64:
        return "float64 is left to the reference"
    return "there is nothing to compute" if left.numel() == 0 or right.numel() == 0 else None


def _by_triton(left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine) -> Tensor:
    from helixfold.ops.triton.outer_product import outer_product_mean_triton  # noqa: PLC0415 (there with CUDA only)

    return outer_product_mean_triton(left, right, left_mask, right_mask, out)


def _refusal_of_triton(left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine) -> str | None:
    c, d, c_z = left.shape[-1], right.shape[-1], out.weight.shape[0]
    if reason := refusal_of_wide_products(left):
        return reason
    if not {c, d} <= {8, 16, 32}:
        return f"{c} x {d} channels are not 8, 16 or 32 of each"
    if c_z not in (32, 64, 128) or out.bias is None:
        return f"{c_z} channels of an edge are not 32, 64 or 128 with an offset"
    if left.numel() == 0 or right.numel() == 0:
        return "there is nothing to compute"
    return refusal_without_triton()


OUTER_PRODUCT_MEAN = Op(
    "outer_product_mean",
    Backend(name="triton", devices=("cuda",), refusal=_refusal_of_triton, run=_by_triton),
    Backend(name="rows", devices=("cpu",), refusal=_refusal_of_rows, run=_by_rows),
    Backend(name="reference", run=outer_product_mean_reference),
)
