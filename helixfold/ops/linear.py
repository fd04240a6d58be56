"""Linear maps, layer norms and their composition, computed in the dtype of the activations, not of the parameters."""

from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import Backend, first_reason, operator, unsupported_float64, wants_gradient
from helixfold.ops.precision import product_dtype
from helixfold.ops.sizes import plain_is_faster
from helixfold.ops.triton.requirements import missing_requirement
from helixfold.ops.weights import Affine


def unsupported_by_float32(properties: DeviceProperties, x: Tensor, *_: object) -> str | None:
    """Return why products of this dtype are not computed in float32: the CPU has instructions for it. Else None."""
    return f"the processor multiplies {x.dtype} as it is" if product_dtype(x.dtype) == x.dtype else None


@operator(
    Backend(
        name="float32",
        kinds=("cpu",),
        run="helixfold.ops.cpu.products:multiply_in_float32",
        unsupported_reason=lambda properties, left, right: (
            "gradients are needed" if wants_gradient(left, right) else unsupported_by_float32(properties, left)
        ),
    )
)
def multiply(left: Float[Tensor, "*batch m k"], right: Float[Tensor, "*batch k n"]) -> Float[Tensor, "*batch m n"]:
    """Return the matrix product of `left` and `right` in their dtype."""
    return left @ right


@operator(
    Backend(
        name="float32",
        kinds=("cpu",),
        run="helixfold.ops.cpu.linear:linear_in_float32",
        unsupported_reason=unsupported_by_float32,
    ),
    Backend(
        name="onednn",
        kinds=("cpu",),
        run="helixfold.ops.cpu.products:linear_onednn",
        unsupported_reason=lambda _, x, parameters: first_reason(
            (x.dtype != torch.float32, f"PyTorch's own map is as fast for {x.dtype}"),
            (wants_gradient(x, *parameters), "gradients are needed"),
            (x.numel() == 0, "there is nothing to compute"),
        ),
    ),
)
def linear(x: Float[Tensor, "*batch c_in"], parameters: Affine) -> Float[Tensor, "*batch c_out"]:
    """Return a linear map of the channels of `x`, computed in its dtype."""
    return torch.nn.functional.linear(x, *parameters.to(x.dtype))


def _unsupported_by_triton(properties: DeviceProperties, x: Tensor, norm: Affine) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    return first_reason(
        (x.dtype == torch.float64, "float64 is left to the reference"),
        (
            norm.bias is None or x.ndim > 4 or x.shape[-1] > 512,
            "it takes up to 4 dims, 512 channels, scale and offset",
        ),
        (x.numel() == 0 or x.stride(-1) != 1, "it takes rows whose channels follow each other"),
    ) or missing_requirement(properties)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.layer_norm:layer_norm_triton",
        unsupported_reason=_unsupported_by_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.layer_norm:layer_norm_rows",
        unsupported_reason=lambda _, x, norm: first_reason(
            (x.dtype not in (torch.bfloat16, torch.float16), f"{x.dtype} needs no wider sums"),
            (not wants_gradient(x, *norm), "no gradients are needed"),
        ),
    ),
)
def layer_norm(x: Float[Tensor, "*batch c"], norm: Affine) -> Float[Tensor, "*batch c"]:
    """Return the layer norm of the channels of `x`, in its dtype, with statistics in float32."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *norm.to(x.dtype), EPS)


def unsupported_norm_linear(properties: DeviceProperties, x: Tensor, norm: Affine, *projects: Affine) -> str | None:
    """Return why the Triton kernels for a norm and maps to few channels do not support these arguments, or None."""
    outputs = sum(len(project.weight) for project in projects)
    # The number of outputs, rounded up to the width of a tile.
    tile_outputs = next((size for size in (16, 32, 64) if outputs <= size), None)
    return first_reason(
        (x.dtype not in (torch.float32, torch.bfloat16, torch.float16), f"{x.dtype} is left to the reference"),
        (x.shape[-1] not in (64, 128, 256), f"{x.shape[-1]} channels are not 64, 128 or 256"),
        (tile_outputs is None, f"{outputs} outputs are more than 64"),
        (
            x.dtype == torch.float32 and properties.kind != "cpu" and tile_outputs != 16,
            "products in float32 with more than 16 outputs are left to cuBLAS",
        ),
        (
            x.ndim > 4 or x.stride(-1) != 1 or 0 in x.shape,
            "the stream is empty, has more than four dimensions or its channels do not follow each other",
        ),
    ) or missing_requirement(
        properties,
        f"norm_linear-{x.element_size()}-{x.shape[-1]}-{tile_outputs}",
        gradients=wants_gradient(x, *norm, *chain(*projects)),
    )


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.norm_linear:norm_linear_triton",
        unsupported_reason=unsupported_norm_linear,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.linear:norm_linear_rows",
        unsupported_reason=unsupported_float64,
        slower=plain_is_faster,
    ),
)
def norm_linear(x: Float[Tensor, "*batch c_in"], norm: Affine, project: Affine) -> Float[Tensor, "*batch c_out"]:
    """Return a linear map of the layer norm of `x` (AlphaFold 2, Suppl. Alg. 7 line 3)."""
    return linear(layer_norm(x, norm), project)
