"""A layer norm followed by a linear map to few channels, as for pair biases and the outer product's projections."""

from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.card import Card
from helixfold.ops.dispatch import Backend, first_reason, operator, refusal_of_float64, wants_gradient
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.linear import linear
from helixfold.ops.sizes import plain_is_faster
from helixfold.ops.triton.refusal import refusal_of_kernels
from helixfold.ops.weights import Affine


def refusal_of_norm_linear(card: Card, x: Tensor, norm: Affine, *projects: Affine) -> str | None:
    """Return why the Triton kernels of a norm and maps to few channels refuse these arguments, or None."""
    outputs = sum(len(project.weight) for project in projects)
    # The number of outputs rounded up to a tile's.
    tile_outputs = next((size for size in (16, 32, 64) if outputs <= size), None)
    return first_reason(
        (x.dtype not in (torch.float32, torch.bfloat16, torch.float16), f"{x.dtype} is left to the reference"),
        (x.shape[-1] not in (64, 128, 256), f"{x.shape[-1]} channels are not 64, 128 or 256"),
        (tile_outputs is None, f"{outputs} outputs are more than 64"),
        (
            x.dtype == torch.float32 and card.kind != "cpu" and tile_outputs != 16,
            "products in float32 are left to cuBLAS, but for up to 16 outputs",
        ),
        (
            x.ndim > 4 or x.stride(-1) != 1 or 0 in x.shape,
            "the stream is empty, has more than four dimensions or its channels do not follow each other",
        ),
    ) or refusal_of_kernels(
        card,
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
