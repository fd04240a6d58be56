"""Linear maps of blocks of positions on a CPU: of a dtype that the processor has no products of, or of a norm."""

import torch
from torch import Tensor

from helixfold.ops.cpu.folded_norm import MapGradient, blocks, folded, norm_gradient, normalised
from helixfold.ops.cpu.products import mapped, product
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import Affine


def linear_in_float32(x: Tensor, parameters: Affine) -> Tensor:
    """`linear` on a CPU that has no products of the dtype of `x`: blocks of it are mapped in float32."""
    return recomputed(_map_of_blocks, _map_of_blocks_gradients, x, *parameters, dtype=torch.float32, after_norm=False)


def norm_linear_rows(x: Tensor, norm: Affine, project: Affine) -> Tensor:
    """`norm_linear` on a CPU: positions stay in the cache between the norm and the map."""
    return recomputed(
        _map_of_blocks,
        _map_of_blocks_gradients,
        x,
        *folded(norm, project),
        dtype=product_dtype(x.dtype),
        after_norm=True,
    )


def _map_of_blocks(x: Tensor, weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype, after_norm: bool) -> Tensor:
    """The map of a stream, or of its channels without mean and deviation if `after_norm`, with products in `dtype`.

    A training pass keeps the arguments only.
    """
    weight, bias = Affine(weight, bias).to(dtype)
    found = x.new_empty(*x.shape[:-1], len(weight))
    for block in blocks(x.shape[:-1]):
        values = normalised(x[block])[0] if after_norm else x[block].reshape(-1, x.shape[-1])
        found[block] = mapped(values.to(dtype), weight, bias).view(found[block].shape)
    return found


def _map_of_blocks_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    after_norm: bool,
) -> tuple[Tensor | None, ...]:
    of_map = MapGradient(weight)
    of_x = torch.empty_like(x) if needed[0] else None
    factors = weight.to(dtype)
    for block in blocks(x.shape[:-1]):
        values, scale = normalised(x[block]) if after_norm else (x[block].reshape(-1, x.shape[-1]), None)
        of_mapped = gradient[block].reshape(-1, len(weight)).to(dtype)
        if any(needed[1:3]):
            of_map.add(of_mapped.mT, values.to(dtype))
        if of_x is not None and scale is not None:
            norm_gradient(product(of_mapped, factors).float(), values, scale, of_x[block])
        elif of_x is not None:
            of_x[block] = product(of_mapped, factors).view(of_x[block].shape)
    of_bias = None if bias is None else of_map.bias.to(bias.dtype)
    return of_x, of_map.weight.to(weight.dtype), of_bias
