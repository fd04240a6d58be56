"""Common parts of the outer product's kernels: the exchange of dimensions and launch options."""

from typing import Any, no_type_check

from helixfold.ops.triton.language import jit, tl

FLOAT32: dict[str, Any] = {"precision": "ieee", "num_warps": 8, "num_stages": 1}
HALF: dict[str, Any] = {"precision": None, "num_warps": 8, "num_stages": 2}


@jit
@no_type_check
def exchanged(x, i: tl.constexpr, j: tl.constexpr, k: tl.constexpr, m: tl.constexpr):
    """Return [(i j) (k m)] as [(i k) (j m)]."""
    return tl.reshape(tl.permute(tl.reshape(x, (i, j, k, m)), (0, 2, 1, 3)), (i * k, j * m))
