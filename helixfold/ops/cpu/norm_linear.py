"""Layer norm and a narrow map on a CPU: positions stay in the cache between the two, and only the stream is saved."""

from torch import Tensor

from helixfold.ops.cpu.folded_norm import folded
from helixfold.ops.cpu.linear import BlockwiseMap
from helixfold.ops.precision import product_dtype
from helixfold.ops.weights import Affine


def norm_linear_rows(x: Tensor, norm: Affine, project: Affine) -> Tensor:
    """`norm_linear` on a CPU."""
    return BlockwiseMap.apply(x, *folded(norm, project), product_dtype(x.dtype), True)
