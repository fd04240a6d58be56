"""Matrix products on a CPU with the faster of the two libraries in PyTorch.

PyTorch multiplies float32 matrices with MKL, which uses only half of the vector width of non-Intel processors: 180
GFLOP/s on two cores of an AMD EPYC (Zen 5). oneDNN, which PyTorch uses for lower precisions and compiled models,
reaches 400 GFLOP/s.

Neither library multiplies bfloat16 on processors without AVX-512, or float16 without special instructions. PyTorch then
multiplies one number at a time, 20 to 60 times slower than in float32. Here such matrices are multiplied in float32
blocks.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from helixfold.ops.cpu.blocks import for_all_cores, slices, steps
from helixfold.ops.cpu.loops import compiled
from helixfold.ops.precision import HAS_ONEDNN, product_dtype
from helixfold.ops.weights import Affine

# Minimum multiplications for oneDNN, which prepares a kernel for every new shape.
_MIN_MULTIPLICATIONS = 2**20
# Minimum multiplications per matrix for a loop over a batch with oneDNN, which has no batched float32 product.
_MIN_MULTIPLICATIONS_OF_ONE = 2**22
# PyTorch's own bfloat16 product also uses oneDNN but writes the bias to memory first.
_DTYPES = {torch.float32, product_dtype(torch.bfloat16)}
# Bytes of the float32 copies of operands per core.
_COPY_BYTES = 2**20


def linear_onednn(x: Tensor, parameters: Affine) -> Tensor:
    """Compute `linear` on a CPU with oneDNN, if the product is large enough, without gradients."""
    return mapped(x.reshape(-1, x.shape[-1]), *parameters.to(x.dtype)).view(*x.shape[:-1], -1)


def mapped(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Return `x @ weight.T + bias` for [m k], [n k] and [n], with `relu` its positive part, without gradients.

    This is fastest if `x` or its transpose is contiguous.
    """
    if loops := _loops(x, weight.mT):
        result = x.new_empty(len(x), len(weight))
        loops.write_products(x[None], weight.mT[None], result[None], bias=bias, relu=relu)
        return result
    if HAS_ONEDNN and x.dtype in _DTYPES and x.numel() * len(weight) >= _MIN_MULTIPLICATIONS:
        # oneDNN multiplies non-dense matrices one number at a time.
        dense = weight if weight.is_contiguous() or weight.mT.is_contiguous() else weight.contiguous()
        activation = "relu" if relu else "none"
        return torch.ops.mkldnn._linear_pointwise(contiguous(x), dense, bias, activation, [], "")
    result = torch.nn.functional.linear(x, weight, bias)
    return result.relu_() if relu else result


def contiguous(x: Tensor) -> Tensor:
    """Return a matrix in row-major order, unchanged if it is already; compiled loops copy it if they can."""
    if not x.is_contiguous() and (loops := compiled("products", x.mT)):
        return loops.transposed(x.mT)
    return x.contiguous()


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right` for [m k] and [k n], computed as its transpose if that saves a copy."""
    if left.stride(1) != 1 and left.dtype != torch.float32:
        # PyTorch also uses oneDNN for lower precisions, without a copy of the transposed matrix.
        return left @ right
    if loops := _loops(left, right):
        result = left.new_empty(len(left), right.shape[1])
        loops.write_products(left[None], right[None], result[None])
        return result
    if left.stride(1) != 1 and (right.stride(0) == 1 or right.numel() < left.numel()):
        return mapped(right.mT, left).mT
    return mapped(left, right.mT)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a matrix product to a float32 sum in place."""
    if total.stride(1) != 1:
        total, left, right = total.mT, right.mT, left.mT
    if loops := _loops(left, right, total):
        loops.write_products(left[None], right[None], total[None], add=True)
    else:
        _add(total, product(left, right))


def _add(total: Tensor, term: Tensor) -> None:
    """Add a matrix of any dtype to a float32 sum in place, without a float32 copy if compiled loops are available."""
    if total.stride(1) != 1:
        total, term = total.mT, term.mT
    are_dense = total.is_contiguous() and term.is_contiguous()
    if are_dense and term.dtype != total.dtype and (loops := compiled("sums", total, term)):
        loops.add(total, term)
    else:
        total += term


def batched_product(left: Tensor, right: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Write the products of `left` [c m k] and `right` [c k n] into `out`, or with `add` add them to it."""
    dtype = product_dtype(out.dtype)
    if not left.dtype == right.dtype == out.dtype == dtype:
        matrix_bytes = 4 * max(tensor[0].numel() for tensor in (left, right, out))
        for part in slices(len(out), for_all_cores(_COPY_BYTES) // max(1, matrix_bytes)):
            products = torch.empty(out[part].shape, dtype=dtype, device=out.device)
            batched_product(left[part].to(dtype), right[part].to(dtype), products)
            _ = out[part].add_(products) if add else out[part].copy_(products)
    elif loops := _loops(left, right, out):
        loops.write_products(left, right, out, add=add)
    elif HAS_ONEDNN and left.dtype == torch.float32 and left[0].numel() * right.shape[2] >= _MIN_MULTIPLICATIONS_OF_ONE:
        for one_left, one_right, one_out in steps(zip(left, right, out, strict=True)):
            _ = one_out.add_(product(one_left, one_right)) if add else one_out.copy_(product(one_left, one_right))
    else:
        torch.baddbmm(out, left, right, beta=int(add), out=out)


def _loops(left: Tensor, right: Tensor, out: Tensor | None = None) -> Any:
    """Return the compiled loops if they compute this product of float32 matrices and are faster than oneDNN."""
    if left.dtype != torch.float32 or left.shape[-2] * right.numel() < _MIN_MULTIPLICATIONS:
        return None
    dense = (matrix if matrix.stride(-1) == 1 else matrix.mT for matrix in (left, right))
    loops = compiled("products", *dense, out, one_dtype=True)
    is_faster = loops is not None and (left.ndim == 3 or left.stride(-1) != 1 or loops.REPLACES_ONEDNN)
    return loops if is_faster and loops.MULTIPLIES else None


def multiply_in_float32(left: Tensor, right: Tensor) -> Tensor:
    """Compute `multiply` in float32 blocks, on a CPU without instructions to multiply the dtype of the operands."""
    result = left.new_empty(*left.shape[:-1], right.shape[-1])
    matrices = (tensor.reshape(prod(left.shape[:-2]), *tensor.shape[-2:]) for tensor in (left, right, result))
    for one_left, one_right, out in steps(zip(*matrices, strict=True)):
        total = torch.zeros(out.shape, device=out.device)
        for part in slices(len(one_right), for_all_cores(_COPY_BYTES) // (4 * max(1, *out.shape))):
            add_product(total, one_left[:, part].float(), one_right[part].float())
        out.copy_(total)
    return result
