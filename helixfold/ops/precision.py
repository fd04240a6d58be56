"""Dtypes of computations that need more precision than the activations, or that the CPU has no instructions for."""

import torch
from torch import Tensor

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
# Processors without AVX-512 cannot multiply bfloat16 matrices, and few processors can multiply float16 ones.
_NO_PRODUCTS = {
    dtype
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"))
    if not (HAS_ONEDNN and getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")())
}


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which matrices are multiplied on this CPU: float32 if it cannot multiply the given dtype."""
    return torch.float32 if dtype in _NO_PRODUCTS else dtype


def to_float32(x: Tensor) -> Tensor:
    """Return the tensor in float32, or as it is if it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
