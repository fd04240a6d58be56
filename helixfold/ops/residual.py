"""Residual addition with dropout: alone, before a layer norm, or fused into the operator that computes the change."""

from typing import NamedTuple, ParamSpec

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import Backend, Op, first_reason, operator, wants_gradient
from helixfold.ops.linear import layer_norm
from helixfold.ops.triton.requirements import missing_requirement
from helixfold.ops.weights import Affine

P = ParamSpec("P")
# The dropout mask, if any, and whether the stream is overwritten. None if nothing is added.
Adding = tuple[Tensor | None, bool] | None


class Residual(NamedTuple):
    """A stream [b i j c] to which a change is added, and a dropout mask shared by all rows or all columns.

    With `in_place`, the sum overwrites the stream; this does not support gradients.
    """

    stream: Tensor
    dropout_mask: Tensor | None = None
    in_place: bool = False

    @property
    def adding(self) -> Adding:
        """The dropout mask and whether the stream is overwritten."""
        return self.dropout_mask, self.in_place

    def plus(self, change: Tensor) -> Tensor:
        """Return the stream plus the product of change and dropout mask, overwriting the stream if `in_place`."""
        stream, dropout_mask, in_place = self
        if in_place and dropout_mask is None:
            return stream.add_(change)
        total = add_change(stream, change, dropout_mask)
        return stream.copy_(total) if in_place else total


def _unsupported_by_triton(
    properties: DeviceProperties, stream: Tensor, change: Tensor, dropout_mask: Tensor | None = None
) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    return first_reason(
        (
            torch.float64 in (stream.dtype, change.dtype) or stream.dtype != change.dtype,
            "float64 and mixed dtypes are left to the reference",
        ),
        (
            dropout_mask is None and stream.stride() == change.stride(),
            "PyTorch's addition is as fast without dropout or transposition",
        ),
        (stream.numel() == 0 or stream.stride(-1) != 1, "it takes rows whose channels follow each other"),
        (wants_gradient(dropout_mask), "the mask needs a gradient"),
    ) or missing_requirement(properties)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.residual:add_change_triton",
        unsupported_reason=_unsupported_by_triton,
    )
)
def add_change(
    stream: Float[Tensor, "b i j c"],
    change: Float[Tensor, "b i j c"],
    dropout_mask: Float[Tensor, "b #i #j c"] | None = None,
) -> Float[Tensor, "b i j c"]:
    """Return `stream + change * dropout_mask`; the mask is shared by all rows or all columns."""
    return stream + change if dropout_mask is None else torch.addcmul(stream, change, dropout_mask)


def added(residual: Residual | None, change_of: Op[P, Tensor], *args: P.args, **kwargs: P.kwargs) -> Tensor:
    """Return the stream of the residual plus the operator's result times the dropout mask.

    If `residual` is None, return the result alone. Backends that fuse the addition do not write the result to memory.
    """
    if residual is None:
        return change_of(*args, **kwargs)
    return change_of.run_added(residual, add_change, *args, **kwargs)


def _norm_unsupported_by_triton(
    properties: DeviceProperties, stream: Tensor, change: Tensor, norm: Affine, dropout_mask: Tensor | None = None
) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    dtypes = {each.dtype for each in (stream, change, dropout_mask) if each is not None}
    return first_reason(
        (len(dtypes) > 1 or not stream.dtype.itemsize <= 4, "float64 and mixed dtypes are left to the reference"),
        (norm.bias is None or stream.shape[-1] > 512, "it takes up to 512 channels, scale and offset"),
        (stream.numel() == 0, "there is nothing to compute"),
        (wants_gradient(dropout_mask), "the mask needs a gradient"),
    ) or missing_requirement(properties)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.structure.residual_norm:residual_norm_triton",
        unsupported_reason=_norm_unsupported_by_triton,
    )
)
def residual_norm(
    stream: Float[Tensor, "b r c"],
    change: Float[Tensor, "b r c"],
    norm: Affine,
    dropout_mask: Float[Tensor, "b r c"] | None = None,
) -> Float[Tensor, "b r c"]:
    """Return the layer norm of (stream + change) * dropout mask; the norm is last.

    AlphaFold 2, Suppl. Alg. 20 line 7.
    """
    total = stream + change
    return layer_norm(total if dropout_mask is None else total * dropout_mask, norm)
