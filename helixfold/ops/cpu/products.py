"""Matrix products on a CPU by the faster of the two libraries that PyTorch has.

PyTorch multiplies float32 with MKL, which uses half the width of processors that are not Intel's: 180 GFLOP/s on two
cores of an AMD EPYC (Zen 5), where oneDNN, which PyTorch keeps for narrow dtypes and for compiled models, reaches 400.

Neither multiplies bfloat16 on a processor without AVX-512, nor float16 without its own instructions: PyTorch does that
one number at a time, 20 to 60 times slower than in float32. Blocks of such matrices are multiplied in float32.
"""

from math import prod

import torch
from torch import Tensor

from helixfold.ops.cpu.blocks import of_all_cores, parts, steps
from helixfold.ops.precision import HAS_ONEDNN, product_dtype
from helixfold.ops.weights import Affine

# Below so many multiplications either is fast, and oneDNN prepares itself for every new shape.
_LEAST = 2**20
# oneDNN has no batched product for float32: one after the other is faster where one is enough for all cores.
_LEAST_OF_A_BATCH = 2**22
# In bfloat16 both ways lead to oneDNN, but the usual one writes the offset to memory first.
_DTYPES = {torch.float32, product_dtype(torch.bfloat16)}
# Of the float32 copies of operands, for each core.
_COPY_BYTES = 2**20


def linear_onednn(x: Tensor, parameters: Affine) -> Tensor:
    """`linear` on a CPU, without gradients."""
    return mapped(x.reshape(-1, x.shape[-1]), *parameters.to(x.dtype)).view(*x.shape[:-1], -1)


def mapped(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` of [m k], [n k] and [n]; without gradients. Fast where the rows of `x` are contiguous."""
    if HAS_ONEDNN and x.dtype in _DTYPES and x.numel() * len(weight) >= _LEAST:
        # Anything but dense matrices it multiplies one number at a time.
        dense = weight if weight.is_contiguous() or weight.mT.is_contiguous() else weight.contiguous()
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), dense, bias, "none", [], "")
    return torch.nn.functional.linear(x, weight, bias)


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of [m k] and [k n], in whichever order of rows and columns saves copying."""
    if left.stride(1) != 1 and (right.stride(0) == 1 or right.numel() < left.numel()):
        return mapped(right.mT, left).mT
    return mapped(left, right.mT)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a matrix product to a float32 sum."""
    total += product(left, right)


def batched_product(left: Tensor, right: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Write the products of each `left` [m k] with its `right` [k n] into `out`, or add them; all are [c ...]."""
    dtype = product_dtype(out.dtype)
    if not left.dtype == right.dtype == out.dtype == dtype:
        matrix_bytes = 4 * max(each[0].numel() for each in (left, right, out))
        for some in parts(len(out), of_all_cores(_COPY_BYTES) // max(1, matrix_bytes)):
            found = torch.empty(out[some].shape, dtype=dtype, device=out.device)
            batched_product(left[some].to(dtype), right[some].to(dtype), found)
            _ = out[some].add_(found) if add else out[some].copy_(found)
    elif HAS_ONEDNN and left.dtype == torch.float32 and left[0].numel() * right.shape[2] >= _LEAST_OF_A_BATCH:
        for one, other, place in steps(zip(left, right, out, strict=True)):
            found = product(one, other)
            _ = place.add_(found) if add else place.copy_(found)
    else:
        torch.baddbmm(out, left, right, beta=int(add), out=out)


def multiply_in_float32(left: Tensor, right: Tensor) -> Tensor:
    """`multiply` on a CPU that has no products of this dtype."""
    found = left.new_empty(*left.shape[:-1], right.shape[-1])
    matrices = (each.reshape(prod(left.shape[:-2]), *each.shape[-2:]) for each in (left, right, found))
    for one, other, place in steps(zip(*matrices, strict=True)):
        total = torch.zeros(place.shape, device=place.device)
        for some in parts(len(other), of_all_cores(_COPY_BYTES) // (4 * max(1, *place.shape))):
            add_product(total, one[:, some].float(), other[some].float())
        place.copy_(total)
    return found
