"""Parameters that a network uses several times in one pass, whose gradients are computed once for all uses.

Autograd would compute the gradient of a linear map's weight at every use and add it to that of the uses before: for
small inputs on a GPU this takes more launches than all else. On a CPU it does, for there it takes no longer.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from helixfold.ops.device_properties import properties_of
from helixfold.ops.dispatch import wants_gradient
from helixfold.ops.linear import linear, multiply
from helixfold.ops.weights import Affine


class LinearUse(NamedTuple):
    """One of several uses of a linear map.

    If gradients are computed for all uses at once, the parameters are without gradient here, and `inputs` [n, c_in] and
    `outputs` [n, c_out] stand for this use's rows. These two hold no memory and are never read: their gradients are the
    inputs of the map and the gradients of its outputs, of which the gradients of weight and bias are made.
    """

    parameters: Affine
    inputs: Tensor | None = None
    outputs: Tensor | None = None


def linear_uses(parameters: Affine, count: int, rows: int) -> list[LinearUse]:
    """Return `count` uses of a linear map, each for an input of that many rows; every use is for one call."""
    if not _at_once(parameters):
        return [LinearUse(parameters)] * count
    weight, bias = parameters
    constant = Affine(weight.detach(), None if bias is None else bias.detach())
    stand_ins = _Uses.apply(*parameters, count, rows)
    return [LinearUse(constant, *stand_ins[2 * index : 2 * index + 2]) for index in range(count)]


def linear_once(x: Float[Tensor, "*batch c_in"], use: LinearUse) -> Float[Tensor, "*batch c_out"]:
    """Return the linear map of the channels, computed in the dtype of `x`."""
    if use.inputs is None:
        return linear(x, use.parameters)
    mapped: Tensor = _Use.apply(x, *use)
    return mapped


def copies(parameters: Affine, count: int) -> list[Affine]:
    """Return the parameters `count` times; the gradients of all copies are summed at once."""
    if not _at_once(parameters):
        return [parameters] * count
    weight, bias = parameters
    weights = weight.expand(count, *weight.shape).unbind()
    biases = [None] * count if bias is None else bias.expand(count, *bias.shape).unbind()
    return [*map(Affine, weights, biases)]


def _at_once(parameters: Affine) -> bool:
    """Return whether the gradients of several uses are computed at once, not one by one by autograd."""
    return wants_gradient(*parameters) and properties_of(parameters.weight.device).kind != "cpu"


class _Uses(torch.autograd.Function):
    """Stand-ins for the inputs and outputs of every use, from whose gradients those of weight and bias are computed."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, count: int, rows: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(weight.new_empty(()).expand(rows, channels) for channels in weight.shape[::-1] * count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        # Uses that nothing was computed from have no gradients.
        given, found = ([each for each in part if each is not None] for part in (gradients[::2], gradients[1::2]))
        if not found:
            return None, None, None, None
        inputs, outputs = torch.cat(given), torch.cat(found)
        grad_weight = multiply(outputs.T, inputs) if ctx.needs_input_grad[0] else None
        return grad_weight, outputs.sum(0) if ctx.needs_input_grad[1] else None, None, None


class _Use(torch.autograd.Function):
    """One use of a linear map."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameters: Affine, inputs: Tensor, outputs: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, parameters.weight)
        return linear(x, parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if gradient is None:
            return None, None, None, None
        outputs = gradient.reshape(-1, gradient.shape[-1])
        grad_x = multiply(outputs, weight).view(x.shape) if ctx.needs_input_grad[0] else None
        return grad_x, None, x.reshape(-1, x.shape[-1]), outputs
