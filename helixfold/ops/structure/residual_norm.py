"""The layer norm of a residual sum with dropout, as the structure module has it twice in an iteration."""

from jaxtyping import Float
from torch import Tensor

from helixfold.ops.card import Card
from helixfold.ops.dispatch import Backend, first_reason, operator, wants_gradient
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.triton.refusal import refusal_of_kernels
from helixfold.ops.weights import Affine


def _refusal_of_triton(
    card: Card, stream: Tensor, change: Tensor, norm: Affine, dropout_mask: Tensor | None = None
) -> str | None:
    dtypes = {each.dtype for each in (stream, change, dropout_mask) if each is not None}
    return first_reason(
        (len(dtypes) > 1 or not stream.dtype.itemsize <= 4, "float64 and mixed dtypes are left to the reference"),
        (norm.bias is None or stream.shape[-1] > 512, "it takes up to 512 channels, scale and offset"),
        (stream.numel() == 0, "there is nothing to compute"),
        (wants_gradient(dropout_mask), "the mask needs a gradient"),
    ) or refusal_of_kernels(card)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.structure.residual_norm:residual_norm_triton",
        refusal=_refusal_of_triton,
    )
)
def residual_norm(
    stream: Float[Tensor, "b r c"],
    change: Float[Tensor, "b r c"],
    norm: Affine,
    dropout_mask: Float[Tensor, "b r c"] | None = None,
) -> Float[Tensor, "b r c"]:
    """Return the normalised sum of the stream and its change, times the dropout mask (Suppl. Alg. 20 line 7)."""
    total = stream + change
    return layer_norm(total if dropout_mask is None else total * dropout_mask, norm)
