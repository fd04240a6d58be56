"""Linear maps and layer norms, which compute in the activations' dtype, whatever the parameters' dtype is, and both."""

from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import Backend, first_reason, operator, refusal_of_float64, wants_gradient
from helixfold.ops.precision import product_dtype
from helixfold.ops.sizes import plain_is_faster
from helixfold.ops.triton.refusal import refusal_of_kernels
from helixfold.ops.weights import Affine


def refusal_of_float32(properties: DeviceProperties, x: Tensor, *_: object) -> str | None:
    """Return why a backend that multiplies in float32 refuses such an input on a CPU, or None."""
    return f"the processor multiplies {x.dtype} as it is" if product_dtype(x.dtype) == x.dtype else None


@operator(
    Backend(
        name="float32",
        kinds=("cpu",),
        run="helixfold.ops.cpu.products:multiply_in_float32",
        refusal=lambda properties, left, right: (
            "gradients are asked for" if wants_gradient(left, right) else refusal_of_float32(properties, left)
        ),
    )
)
def multiply(left: Float[Tensor, "*batch m k"], right: Float[Tensor, "*batch k n"]) -> Float[Tensor, "*batch m n"]:
    """Return the matrix product in the dtype of the matrices."""
    return left @ right


@operator(
    Backend(
        name="float32", kinds=("cpu",), run="helixfold.ops.cpu.linear:linear_in_float32", refusal=refusal_of_float32
    ),
    Backend(
        name="onednn",
        kinds=("cpu",),
        run="helixfold.ops.cpu.products:linear_onednn",
        refusal=lambda _, x, parameters: first_reason(
            (x.dtype != torch.float32, f"PyTorch's own map is as fast for {x.dtype}"),
            (wants_gradient(x, *parameters), "gradients are asked for"),
            (x.numel() == 0, "there is nothing to compute"),
        ),
    ),
)
def linear(x: Float[Tensor, "*batch c_in"], parameters: Affine) -> Float[Tensor, "*batch c_out"]:
    """Return the linear map of the channels, computed in the dtype of `x`."""
    return torch.nn.functional.linear(x, *parameters.to(x.dtype))


def _refusal_of_triton(properties: DeviceProperties, x: Tensor, norm: Affine) -> str | None:
    return first_reason(
        (x.dtype == torch.float64, "float64 is left to the reference"),
        (
            norm.bias is None or x.ndim > 4 or x.shape[-1] > 512,
            "it takes up to 4 dims, 512 channels, scale and offset",
        ),
        (x.numel() == 0 or x.stride(-1) != 1, "it takes rows whose channels follow each other"),
    ) or refusal_of_kernels(properties)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.layer_norm:layer_norm_triton",
        refusal=_refusal_of_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.layer_norm:layer_norm_rows",
        refusal=lambda _, x, norm: first_reason(
            (x.dtype not in (torch.bfloat16, torch.float16), f"{x.dtype} needs no wider sums"),
            (not wants_gradient(x, *norm), "no gradients are asked for"),
        ),
    ),
)
def layer_norm(x: Float[Tensor, "*batch c"], norm: Affine) -> Float[Tensor, "*batch c"]:
    """Return the normalised channels times weight plus bias, in the dtype of `x`, with statistics in float32."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *norm.to(x.dtype), EPS)


def refusal_of_norm_linear(properties: DeviceProperties, x: Tensor, norm: Affine, *projects: Affine) -> str | None:
    """Return why the Triton kernels of a norm and maps to few channels refuse these arguments, or None."""
    outputs = sum(len(project.weight) for project in projects)
    # The number of outputs rounded up to a tile's.
    tile_outputs = next((size for size in (16, 32, 64) if outputs <= size), None)
    return first_reason(
        (x.dtype not in (torch.float32, torch.bfloat16, torch.float16), f"{x.dtype} is left to the reference"),
        (x.shape[-1] not in (64, 128, 256), f"{x.shape[-1]} channels are not 64, 128 or 256"),
        (tile_outputs is None, f"{outputs} outputs are more than 64"),
        (
            x.dtype == torch.float32 and properties.kind != "cpu" and tile_outputs != 16,
            "products in float32 are left to cuBLAS, but for up to 16 outputs",
        ),
        (
            x.ndim > 4 or x.stride(-1) != 1 or 0 in x.shape,
            "the stream is empty, has more than four dimensions or its channels do not follow each other",
        ),
    ) or refusal_of_kernels(
        properties,
        f"norm_linear-{x.element_size()}-{x.shape[-1]}-{tile_outputs}",
        gradients=wants_gradient(x, *norm, *chain(*projects)),
    )


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.norm_linear:norm_linear_triton",
        refusal=refusal_of_norm_linear,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.linear:norm_linear_rows",
        refusal=refusal_of_float64,
        slower=plain_is_faster,
    ),
)
def norm_linear(x: Float[Tensor, "*batch c_in"], norm: Affine, project: Affine) -> Float[Tensor, "*batch c_out"]:
    """Return the linear map of the normalised channels (AlphaFold 2, Suppl. Alg. 7 line 3)."""
    return linear(layer_norm(x, norm), project)
