"""Linear maps that compute in the activations' dtype, whatever the parameters' dtype is."""

import torch
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.dispatch import Backend, first_reason, operator, wants_gradient
from helixfold.ops.multiply import refusal_of_float32
from helixfold.ops.weights import Affine


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
