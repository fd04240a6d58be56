"""The transition on a CPU in blocks of rows, whose hidden channels stay in the cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from helixfold.ops.cpu.blocks import for_all_cores, slices
from helixfold.ops.cpu.fused_norm import MapGradient, add_scaled_norm_gradient, scaled_norm
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.cpu.result import Result, change_or_sum
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import SavedIntermediates
from helixfold.ops.residual import Residual
from helixfold.ops.weights import Affine, TransitionWeights

# Elements of the hidden channels of a block, per core: few enough for the caches of all cores together, enough for fast
# matrix products. Large streams have larger blocks, because each block is added to the gradients of the weights.
_HIDDEN_ELEMENTS, _LARGE_HIDDEN_ELEMENTS = 2**18, 2**20
_LARGE_STREAM = 2**22  # minimum elements


def transition_rows(x: Tensor, weights: TransitionWeights, *, residual: Residual | None = None) -> Tensor:
    """Compute `transition` on a CPU, and add it to the stream of `residual`, if any.

    The hidden channels are saved for the gradients or recomputed from `x`.
    """
    norm, expand, contract = weights
    dtype = product_dtype(x.dtype)
    parameters = *norm.to(torch.float32), *expand.to(dtype), *contract.to(dtype)
    return change_or_sum(residual, _transition, _transition_gradients, x, *parameters, can_save=True)


def transition_adding_rows(residual: Residual, x: Tensor, weights: TransitionWeights) -> Tensor | None:
    """Compute `transition` on a CPU, and add it to the stream of `residual`, if the stream is contiguous."""
    return transition_rows(x, weights, residual=residual) if residual.stream.is_contiguous() else None


def _transition(x: Tensor, *parameters: Tensor, saved: SavedIntermediates, residual: Residual | None = None) -> Tensor:
    """Return the change of `x`, or the stream of `residual` plus the change.

    `parameters` are scale and offset of the norm, then weight and bias of both maps.
    """
    scale, offset, w1, b1, w2, b2 = parameters
    flat = x.reshape(-1, x.shape[-1])
    result = Result(flat, None if residual is None else residual._replace(stream=residual.stream.view(flat.shape)))
    buffer = saved.buffer(len(flat), len(w1), like=w1)
    for rows in slices(len(flat), _block_rows(w1, x.numel())):
        normed, _ = scaled_norm(flat[rows], Affine(scale, offset), w1.dtype)
        hidden = mapped(normed, w1, b1, relu=True)
        if buffer is not None:
            buffer[rows] = hidden
        result.write((rows,), mapped(hidden, w2, b2))
    return result.tensor.view(x.shape)


def _transition_gradients(
    needed: tuple[bool, ...], gradient: Tensor, x: Tensor, *parameters: Tensor, saved: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `x` and the parameters; `saved` has the hidden channels or is empty."""
    scale, offset, w1, b1, w2, _ = parameters
    norm = Affine(scale, offset)
    flat, flat_gradient = (each.reshape(-1, x.shape[-1]) for each in (x, gradient))
    grad_x = torch.empty(flat.shape, dtype=x.dtype, device=x.device)
    grad_norm = torch.zeros(2, *scale.shape, device=x.device)
    grad_expand, grad_contract = (MapGradient(needs_weight=needed[at], needs_bias=needed[at + 1]) for at in (3, 5))
    for rows in slices(len(flat), _block_rows(w1, x.numel())):
        grad_rows = flat_gradient[rows].to(w1.dtype)
        normed, statistics = scaled_norm(flat[rows], norm, w1.dtype)
        hidden = saved[0][rows] if saved else mapped(normed, w1, b1, relu=True)
        grad_contract.add(grad_rows.mT, hidden)
        grad_hidden = product(grad_rows, w2)
        torch.ops.aten.threshold_backward.grad_input(grad_hidden, hidden, 0, grad_input=grad_hidden)
        grad_expand.add(grad_hidden.mT, normed)
        add_scaled_norm_gradient(grad_norm, product(grad_hidden, w1), flat[rows], norm, statistics, grad_x[rows])
    sums = *grad_norm, grad_expand.weight, grad_expand.bias, grad_contract.weight, grad_contract.bias
    gradients = zip(sums, parameters, needed[1:], strict=True)
    return grad_x.view(x.shape), *(
        total.to(parameter.dtype) if learns and total is not None else None for total, parameter, learns in gradients
    )


def _block_rows(expand: Tensor, stream: int) -> int:
    """Return the maximum rows of a block of a stream of `stream` elements."""
    elements = _LARGE_HIDDEN_ELEMENTS if stream >= _LARGE_STREAM else _HIDDEN_ELEMENTS
    return for_all_cores(elements) // len(expand)
