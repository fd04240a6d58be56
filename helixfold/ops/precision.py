"""Where more than the activations' own precision is needed, or all that a processor has."""

import torch
from torch import Tensor

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
# Processors without AVX-512 have no products of bfloat16, and few have those of float16.
_NO_PRODUCTS = {
    dtype
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"))
    if not (HAS_ONEDNN and getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")())
}


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which matrices of this one are multiplied on a CPU: float32 if the processor lacks it."""
    return torch.float32 if dtype in _NO_PRODUCTS else dtype


def wide(x: Tensor) -> Tensor:
    """In float32, unless it is more already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
