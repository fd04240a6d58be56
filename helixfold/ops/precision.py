"""Dtypes for computations that need float32, or for which the CPU has no instructions."""

import torch
from torch import Tensor

# Whether this PyTorch has oneDNN and its linear map, which multiplies float32 matrices faster than MKL on some
# processors.
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
# Processors without AVX-512 cannot multiply bfloat16 matrices, and few processors can multiply float16 ones.
_NO_PRODUCTS = {
    dtype
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"))
    if not (HAS_ONEDNN and getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")())
}


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which this CPU multiplies matrices of a dtype: float32 if it has no instructions for it."""
    return torch.float32 if dtype in _NO_PRODUCTS else dtype


def to_float32(x: Tensor) -> Tensor:
    """Return a tensor in float32, or unchanged if it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
