"""Parameters that a network uses several times, with gradients that are computed once for all uses.

Autograd would compute the gradient of the weight of a linear map at every use and add it to a sum. With small inputs on
a GPU, these kernel launches outnumber all others. On a CPU this takes no longer, so autograd computes the gradients.
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

    If gradients are computed for all uses at once, the parameters are detached here, and `inputs` [n, c_in] and
    `outputs` [n, c_out] stand for the rows of this use. These stand-ins hold no memory and are never read. Their
    gradients are the inputs of the map and the gradients of its outputs, from which the gradients of weight and bias
    are computed.
    """

    parameters: Affine
    inputs: Tensor | None = None
    outputs: Tensor | None = None


def linear_uses(parameters: Affine, count: int, rows: int) -> list[LinearUse]:
    """Return `count` uses of a linear map, each for one call with an input of `rows` rows.

    On a CPU, or without gradients, the uses have the parameters themselves and no stand-ins.
    """
    if not _at_once(parameters):
        return [LinearUse(parameters)] * count
    weight, bias = parameters
    constant = Affine(weight.detach(), None if bias is None else bias.detach())
    stand_ins = _Uses.apply(*parameters, count, rows)
    return [LinearUse(constant, *stand_ins[2 * index : 2 * index + 2]) for index in range(count)]


def linear_once(x: Float[Tensor, "*batch c_in"], use: LinearUse) -> Float[Tensor, "*batch c_out"]:
    """Return a linear map of the channels of `x`, computed in its dtype, for one of several uses."""
    if use.inputs is None:
        return linear(x, use.parameters)
    mapped: Tensor = _Use.apply(x, *use)
    return mapped


def copies(parameters: Affine, count: int) -> list[Affine]:
    """Return `count` views of the parameters, whose gradients are summed in one operation.

    On a CPU, or without gradients, return the parameters themselves `count` times.
    """
    if not _at_once(parameters):
        return [parameters] * count
    weight, bias = parameters
    weights = weight.expand(count, *weight.shape).unbind()
    biases = [None] * count if bias is None else bias.expand(count, *bias.shape).unbind()
    return [*map(Affine, weights, biases)]


def _at_once(parameters: Affine) -> bool:
    """Return whether the gradients of several uses are computed together, instead of one by one by autograd."""
    return wants_gradient(*parameters) and properties_of(parameters.weight.device).kind != "cpu"


class _Uses(torch.autograd.Function):
    """Stand-ins for the inputs and outputs of every use, whose gradients give the gradients of weight and bias."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, count: int, rows: int) -> tuple[Tensor, ...]:
        """Return a stand-in for the inputs [rows, c_in] and the outputs [rows, c_out] of each use, in turn."""
        ctx.set_materialize_grads(False)
        return tuple(weight.new_empty(()).expand(rows, channels) for channels in weight.shape[::-1] * count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of weight and bias; `gradients` are in turn inputs and output gradients."""
        # Uses without effect on the loss have no gradients.
        by_use = ([each for each in part if each is not None] for part in (gradients[::2], gradients[1::2]))
        inputs_of_uses, outputs_of_uses = by_use
        if not outputs_of_uses:
            return None, None, None, None
        inputs, outputs = torch.cat(inputs_of_uses), torch.cat(outputs_of_uses)
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
        """Return the gradient of `x`, and as gradients of the stand-ins the inputs and the gradients of the outputs."""
        x, weight = ctx.saved_tensors
        if gradient is None:
            return None, None, None, None
        outputs = gradient.reshape(-1, gradient.shape[-1])
        grad_x = multiply(outputs, weight).view(x.shape) if ctx.needs_input_grad[0] else None
        return grad_x, None, x.reshape(-1, x.shape[-1]), outputs
