"""The transition in blocks of rows whose hidden channels stay in the processor's cache."""

import torch
from torch import Tensor

from helixfold.ops.constants import EPS
from helixfold.ops.cpu.blocks import of_all_cores, steps
from helixfold.ops.cpu.products import add_product, mapped, product
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import TransitionWeights

# Of a block's hidden channels, for each core: they stay in cache, and products are still large enough to be fast.
_HIDDEN_ELEMENTS = 2**18


def transition_rows(x: Tensor, weights: TransitionWeights) -> Tensor:
    """`transition` on a CPU; a training pass keeps nothing but `x`."""
    norm, expand, contract = weights
    dtype = product_dtype(x.dtype)
    return recomputed(
        _transition, _transition_gradients, x, *norm.to(torch.float32), *expand.to(dtype), *contract.to(dtype)
    )


def _transition(x: Tensor, scale: Tensor, offset: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    change = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for rows, out in steps(zip(_blocks(x, w1), _blocks(change, w1), strict=True)):
        normed = torch.nn.functional.layer_norm(rows.float(), scale.shape, scale, offset, EPS).to(w1.dtype)
        out.copy_(mapped(mapped(normed, w1, b1).relu_(), w2, b2))
    return change


def _transition_gradients(
    needed: tuple[bool, ...], gradient: Tensor, x: Tensor, *parameters: Tensor
) -> tuple[Tensor | None, ...]:
    scale, offset, w1, b1, w2, _ = parameters
    of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sums = [torch.zeros(each.shape, device=x.device) for each in parameters]
    of_scale, of_offset, of_w1, of_b1, of_w2, of_b2 = sums
    for rows, given, out in steps(zip(_blocks(x, w1), _blocks(gradient, w1), _blocks(of_x, w1), strict=True)):
        wide, gradients = rows.float(), given.to(w1.dtype)
        normed, mean, rstd = torch.native_layer_norm(wide, scale.shape, scale, offset, EPS)
        normed = normed.to(w1.dtype)
        hidden = mapped(normed, w1, b1).relu_()
        add_product(of_w2, gradients.T, hidden)
        of_b2 += gradients.sum(0)
        of_hidden = product(gradients, w2)
        torch.ops.aten.threshold_backward.grad_input(of_hidden, hidden, 0, grad_input=of_hidden)
        add_product(of_w1, of_hidden.T, normed)
        of_b1 += of_hidden.sum(0)
        of_rows, block_scale, block_offset = torch.ops.aten.native_layer_norm_backward(
            product(of_hidden, w1).float(), wide, scale.shape, mean, rstd, scale, offset, [True, True, True]
        )
        out.copy_(of_rows)
        of_scale += block_scale
        of_offset += block_offset
    return of_x, *(each.to(like.dtype) for each, like in zip(sums, parameters, strict=True))


def _blocks(x: Tensor, expand: Tensor) -> tuple[Tensor, ...]:
    """Views of the rows, a block at a time."""
    return x.reshape(-1, x.shape[-1]).split(max(1, of_all_cores(_HIDDEN_ELEMENTS) // len(expand)))
