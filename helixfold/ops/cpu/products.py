"""Matrix products on a CPU by the faster of the two libraries that PyTorch has.

PyTorch multiplies float32 with MKL, which uses half the width of processors that are not Intel's: 180 GFLOP/s on two
cores of an AMD EPYC (Zen 5), where oneDNN, which PyTorch keeps for narrow dtypes and for compiled models, reaches 400.
"""

import torch
from torch import Tensor

# Below so many multiplications either is fast, and oneDNN prepares itself for every new shape.
_LEAST = 2**20
# oneDNN has no batched product for float32: one after the other is faster where one is enough for all cores.
_LEAST_OF_A_BATCH = 2**22
# In bfloat16 both ways lead to oneDNN, but the usual one writes the offset to memory first.
_DTYPES = (torch.float32, torch.bfloat16)
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def mapped(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` of [m k], [n k] and [n]; without gradients. Fast where the rows of `x` are contiguous."""
    if _HAS_ONEDNN and x.dtype in _DTYPES and x.numel() * len(weight) >= _LEAST:
        # Anything but dense matrices it multiplies one number at a time.
        dense = weight if weight.is_contiguous() or weight.mT.is_contiguous() else weight.contiguous()
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), dense, bias, "none", [], "")
        return found
    return torch.nn.functional.linear(x, weight, bias)


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of [m k] and [k n], in whichever order of rows and columns saves copying."""
    contiguous = left.stride(1) == 1
    if not contiguous and (right.stride(0) == 1 or right.numel() < left.numel()):
        return mapped(right.mT, left).mT
    return mapped(left, right.mT)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a matrix product to a float32 sum."""
    total += product(left, right)


def batched_product(left: Tensor, right: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Write the products of each `left` [m k] with its `right` [k n] into `out`, or add them; all are [c ...]."""
    if _HAS_ONEDNN and left.dtype == torch.float32 and left[0].numel() * right.shape[2] >= _LEAST_OF_A_BATCH:
        for one, other, place in zip(left, right, out, strict=True):
            found = product(one, other)
            _ = place.add_(found) if add else place.copy_(found)
    else:
        torch.baddbmm(out, left, right, beta=int(add), out=out)
