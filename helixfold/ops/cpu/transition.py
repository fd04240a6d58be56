"""The transition in blocks of rows whose hidden channels stay in the processor's cache."""

import torch
from torch import Tensor

from helixfold.ops.cpu.blocks import for_all_cores, steps
from helixfold.ops.cpu.fused_norm import MapGradient, fused, norm_gradient, normalised
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import TransitionWeights

# Elements of a block's hidden channels per core: few enough for its cache, enough for fast matrix products.
_HIDDEN_ELEMENTS = 2**18


def transition_rows(x: Tensor, weights: TransitionWeights) -> Tensor:
    """Compute `transition` on a CPU, saving only `x` for the gradients."""
    norm, expand, contract = weights
    return recomputed(_transition, _transition_gradients, x, *fused(norm, expand), *contract.to(torch.float32))


def _transition(x: Tensor, *parameters: Tensor) -> Tensor:
    w1, b1, w2, b2 = (parameter.to(product_dtype(x.dtype)) for parameter in parameters)
    change = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for rows, out in steps(zip(_blocks(x, w1), _blocks(change, w1), strict=True)):
        hidden = mapped(normalised(rows, w1.dtype)[0], w1, b1, relu=True)
        out.copy_(mapped(hidden, w2, b2))
    return change


def _transition_gradients(
    needed: tuple[bool, ...], gradient: Tensor, x: Tensor, *parameters: Tensor
) -> tuple[Tensor | None, ...]:
    w1, b1, w2, _ = (parameter.to(product_dtype(x.dtype)) for parameter in parameters)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_expand, grad_contract = (MapGradient(needs_weight=needed[at], needs_bias=needed[at + 1]) for at in (1, 3))
    for rows, grad_rows, out in steps(zip(_blocks(x, w1), _blocks(gradient, w1), _blocks(grad_x, w1), strict=True)):
        gradients = grad_rows.to(w1.dtype)
        values, statistics = normalised(rows, w1.dtype)
        hidden = mapped(values, w1, b1, relu=True)
        grad_contract.add(gradients.mT, hidden)
        grad_hidden = product(gradients, w2)
        torch.ops.aten.threshold_backward.grad_input(grad_hidden, hidden, 0, grad_input=grad_hidden)
        grad_expand.add(grad_hidden.mT, values)
        norm_gradient(product(grad_hidden, w1), rows, statistics, out)
    return grad_x, grad_expand.weight, grad_expand.bias, grad_contract.weight, grad_contract.bias


def _blocks(x: Tensor, expand: Tensor) -> tuple[Tensor, ...]:
    """Return views of blocks of rows."""
    return x.reshape(-1, x.shape[-1]).split(max(1, for_all_cores(_HIDDEN_ELEMENTS) // len(expand)))
