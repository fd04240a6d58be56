"""The outer product mean: the outer product of two MSA columns, averaged over sequences and mapped to an edge."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.constants import COUNT_FLOOR
from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import (
    Backend,
    first_reason,
    operator,
    unsupported_float64,
    unsupported_float64_or_empty,
    unsupported_wide_products,
    wants_gradient,
)
from helixfold.ops.linear import linear, norm_linear, unsupported_norm_linear
from helixfold.ops.sizes import plain_is_faster
from helixfold.ops.triton.requirements import missing_requirement
from helixfold.ops.weights import Affine


def _unsupported_by_triton(
    properties: DeviceProperties, left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine
) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    c, d, c_z = left.shape[-1], right.shape[-1], out.weight.shape[0]
    return (
        unsupported_wide_products(properties, left)
        or first_reason(
            (not {c, d} <= {8, 16, 32}, f"{c} x {d} channels are not 8, 16 or 32 of each"),
            (
                c_z not in (32, 64, 128) or out.bias is None,
                f"{c_z} channels of an edge are not 32, 64 or 128 with an offset",
            ),
            (left.numel() == 0 or right.numel() == 0, "there is nothing to compute"),
        )
        or missing_requirement(
            properties, f"outer_product-{max(c, d)}-{c_z}", gradients=wants_gradient(left, right, *out)
        )
    )


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.norm_linear:outer_product_operand_triton",
        unsupported_reason=lambda properties, columns, mask, norm, project: unsupported_norm_linear(
            properties, columns, norm, project
        ),
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.linear:outer_product_operand_rows",
        unsupported_reason=unsupported_float64,
        slower=plain_is_faster,
    ),
)
def outer_product_operand(
    columns: Float[Tensor, "b i s c_m"], mask: Float[Tensor, "b i s"], norm: Affine, project: Affine
) -> Float[Tensor, "b i s c"]:
    """Return one operand of the outer product mean: a masked linear map of the layer norm of MSA columns.

    AlphaFold 2, Suppl. Alg. 10 lines 1 and 2.
    """
    return norm_linear(columns, norm, project) * mask[..., None].to(columns.dtype)


def _operands_unsupported_by_triton(
    properties: DeviceProperties, columns: Tensor, mask: Tensor, norm: Affine, left: Affine, right: Affine
) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    return first_reason(
        (left.weight.shape != right.weight.shape, "the operands differ in channels"),
        ((left.bias is None) != (right.bias is None), "only one operand has a bias"),
    ) or unsupported_norm_linear(properties, columns, norm, left, right)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.norm_linear:outer_product_operands_triton",
        unsupported_reason=_operands_unsupported_by_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.linear:outer_product_operands_rows",
        unsupported_reason=unsupported_float64,
        slower=plain_is_faster,
    ),
)
def outer_product_operands(
    columns: Float[Tensor, "b r s c_m"], mask: Float[Tensor, "b r s"], norm: Affine, left: Affine, right: Affine
) -> tuple[Float[Tensor, "b r s c"], Float[Tensor, "b s r d"]]:
    """Return both operands of `outer_product_mean`, computed from the same MSA columns.

    The dims of the left operand are residues, sequences; the dims of the right one are sequences, residues. AlphaFold
    2, Suppl. Alg. 10 lines 1 and 2.
    """
    right_operand = outer_product_operand(columns, mask, norm, right)
    return outer_product_operand(columns, mask, norm, left), right_operand.transpose(1, 2)


def _slower_than_plain(left: Tensor, right: Tensor, *_: object, **__: object) -> str | None:
    """Return why plain PyTorch is faster; the largest tensor that it saves are the outer products."""
    b, i, _rows, c = left.shape
    return plain_is_faster(left, saved=b * i * c * right.shape[2] * right.shape[3])


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.outer_product:outer_product_mean_triton",
        run_adding="helixfold.ops.triton.outer_product:outer_product_mean_adding_triton",
        unsupported_reason=_unsupported_by_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.outer_product:outer_product_mean_rows",
        run_adding="helixfold.ops.cpu.outer_product:outer_product_mean_adding_rows",
        unsupported_reason=unsupported_float64_or_empty,
        slower=_slower_than_plain,
    ),
)
def outer_product_mean(
    left: Float[Tensor, "b i s c"],
    right: Float[Tensor, "b s j d"],
    left_mask: Float[Tensor, "b i s"],
    right_mask: Float[Tensor, "b s j"],
    out: Affine,
) -> Float[Tensor, "b i j c_z"]:
    """Return a linear map of the outer products of columns i and j, averaged over sequences.

    `left` and `right` must be zero where they are masked. The mean is over sequences in which both masks are 1. The
    whole result of the map, bias included, is divided by their count plus `COUNT_FLOOR`. AlphaFold 2, Suppl. Alg. 10
    lines 3 and 4.
    """
    c, d = left.shape[-1], right.shape[-1]
    # One matrix product with rows (i c) and columns (j d) sums over sequences.
    outer = rearrange(left, "b i s c -> b (i c) s") @ rearrange(right, "b s j d -> b s (j d)")
    outer = rearrange(outer, "b (i c) (j d) -> b i j (c d)", c=c, d=d)
    count = left_mask.float() @ right_mask.float() + COUNT_FLOOR
    return linear(outer, out) / count[..., None].to(left.dtype)
