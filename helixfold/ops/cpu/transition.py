"""The transition on a CPU in blocks of rows, whose hidden channels stay in the cache."""

from collections.abc import Sequence
from itertools import repeat

import torch
from torch import Tensor

from helixfold.ops.cpu.blocks import for_all_cores, steps
from helixfold.ops.cpu.fused_norm import MapGradient, add_scaled_norm_gradient, scaled_norm
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import SavedIntermediates, recomputed
from helixfold.ops.weights import Affine, TransitionWeights

# Elements of the hidden channels of a block, per core: few enough for the caches of all cores together, enough for fast
# matrix products. Large streams have larger blocks, because each block is added to the gradients of the weights.
_HIDDEN_ELEMENTS, _LARGE_HIDDEN_ELEMENTS = 2**18, 2**20
_LARGE_STREAM = 2**22  # minimum elements


def transition_rows(x: Tensor, weights: TransitionWeights) -> Tensor:
    """Compute `transition` on a CPU; the hidden channels are saved for the gradients or recomputed from `x`."""
    norm, expand, contract = weights
    dtype = product_dtype(x.dtype)
    parameters = *norm.to(torch.float32), *expand.to(dtype), *contract.to(dtype)
    return recomputed(_transition, _transition_gradients, x, *parameters, can_save=True)


def _transition(x: Tensor, *parameters: Tensor, saved: SavedIntermediates) -> Tensor:
    """Return the change of `x`; `parameters` are scale and offset of the norm, then weight and bias of both maps."""
    scale, offset, w1, b1, w2, b2 = parameters
    change = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    buffer = saved.buffer(*x.shape[:-1], len(w1), like=w1)
    buffers = repeat(None) if buffer is None else _blocks(buffer, w1, x.numel())
    streams = (_blocks(each, w1, x.numel()) for each in (x, change))
    for rows, out, part in steps(zip(*streams, buffers, strict=False)):
        normed, _ = scaled_norm(rows, Affine(scale, offset), w1.dtype)
        hidden = mapped(normed, w1, b1, relu=True)
        if part is not None:
            part.copy_(hidden)
        out.copy_(mapped(hidden, w2, b2))
    return change


def _transition_gradients(
    needed: tuple[bool, ...], gradient: Tensor, x: Tensor, *parameters: Tensor, saved: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `x` and the parameters; `saved` has the hidden channels or is empty."""
    scale, offset, w1, b1, w2, _ = parameters
    norm = Affine(scale, offset)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_norm = torch.zeros(2, *scale.shape, device=x.device)
    grad_expand, grad_contract = (MapGradient(needs_weight=needed[at], needs_bias=needed[at + 1]) for at in (3, 5))
    blocks = zip(*(_blocks(each, w1, x.numel()) for each in (x, gradient, grad_x)), strict=True)
    hiddens = _blocks(saved[0], w1, x.numel()) if saved else repeat(None)
    for (rows, grad_rows, out), part in steps(zip(blocks, hiddens, strict=False)):
        gradients = grad_rows.to(w1.dtype)
        normed, statistics = scaled_norm(rows, norm, w1.dtype)
        hidden = mapped(normed, w1, b1, relu=True) if part is None else part
        grad_contract.add(gradients.mT, hidden)
        grad_hidden = product(gradients, w2)
        torch.ops.aten.threshold_backward.grad_input(grad_hidden, hidden, 0, grad_input=grad_hidden)
        grad_expand.add(grad_hidden.mT, normed)
        add_scaled_norm_gradient(grad_norm, product(grad_hidden, w1), rows, norm, statistics, out)
    sums = *grad_norm, grad_expand.weight, grad_expand.bias, grad_contract.weight, grad_contract.bias
    gradients = zip(sums, parameters, needed[1:], strict=True)
    return grad_x, *(
        total.to(parameter.dtype) if learns and total is not None else None for total, parameter, learns in gradients
    )


def _blocks(x: Tensor, expand: Tensor, stream: int) -> tuple[Tensor, ...]:
    """Return views of blocks of rows, whose size depends on `stream`, the number of elements of the whole stream."""
    elements = _LARGE_HIDDEN_ELEMENTS if stream >= _LARGE_STREAM else _HIDDEN_ELEMENTS
    return x.reshape(-1, x.shape[-1]).split(max(1, for_all_cores(elements) // len(expand)))
