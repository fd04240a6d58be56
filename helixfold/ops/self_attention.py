"""Self-attention within rows: layer norm, projections, attention, gate and output map."""

from itertools import chain

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.attention import attention
from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import Backend, first_reason, operator, unsupported_float64_or_empty, wants_gradient
from helixfold.ops.linear import layer_norm, linear
from helixfold.ops.sizes import plain_is_faster
from helixfold.ops.triton.requirements import missing_requirement
from helixfold.ops.weights import Affine, SelfAttentionWeights


def _unsupported_by_triton(
    properties: DeviceProperties,
    x: Tensor,
    mask: Tensor,
    bias: Tensor | Affine | None,
    weights: SelfAttentionWeights,
    heads: int,
) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    norm, qkv, gate, out = weights
    width, c = gate.weight.shape
    of_bias = bias if isinstance(bias, Affine) else (bias,)
    return first_reason(
        (x.dtype not in (torch.float32, torch.bfloat16, torch.float16), f"{x.dtype} is left to the reference"),
        (
            qkv.bias is not None or None in (norm.bias, gate.bias, out.bias),
            "only the norm, the gate and the output map must have a bias",
        ),
        (
            isinstance(bias, Affine) and bias.bias is not None,
            "the map to the bias of the logits must have no bias itself",
        ),
        (
            not width == c == len(out.weight) <= 512 or width // heads not in (8, 16, 32, 64),
            f"{heads} heads of {c} channels are not of 8, 16, 32 or 64 each, or their number is not the stream's",
        ),
        (x.numel() == 0 or x.stride(-1) != 1, "it takes rows whose channels follow each other"),
    ) or missing_requirement(
        properties,
        f"attention-{x.element_size()}-{width // heads}",
        gradients=wants_gradient(x, *of_bias, *chain(*weights)),
    )


def _slower_than_plain(
    x: Tensor, mask: Tensor, bias: Tensor | Affine | None, weights: SelfAttentionWeights, heads: int
) -> str | None:
    """Return why plain PyTorch is faster; the largest tensor that it saves are the attention weights."""
    b, n, k, _ = x.shape
    return plain_is_faster(x, saved=b * n * heads * k * k)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.ops.triton.self_attention:self_attention_triton",
        run_adding="helixfold.ops.triton.self_attention:self_attention_adding_triton",
        unsupported_reason=_unsupported_by_triton,
    ),
    Backend(
        name="rows",
        kinds=("cpu",),
        run="helixfold.ops.cpu.self_attention:self_attention_rows",
        run_adding="helixfold.ops.cpu.self_attention:self_attention_adding_rows",
        unsupported_reason=unsupported_float64_or_empty,
        slower=_slower_than_plain,
    ),
)
def self_attention(
    x: Float[Tensor, "b n k c"],
    mask: Float[Tensor, "b n k"],
    bias: Float[Tensor, "b h k k"] | Affine | None,
    weights: SelfAttentionWeights,
    heads: int,
) -> Float[Tensor, "b n k c"]:
    """Return the change of every row from self-attention, with `bias` added to the logits of all rows of its sample.

    An affine `bias` is a linear map from the layer norm of `x` to the bias (b k k c -> b h k k). AlphaFold 2, Suppl.
    Alg. 7, 8 and 13.
    """
    x = layer_norm(x, weights.norm)
    if isinstance(bias, Affine):
        bias = rearrange(linear(x, bias), "b n k h -> b h n k")
    query, key, value = rearrange(linear(x, weights.qkv), "b n k (three h d) -> three b n h k d", three=3, h=heads)
    gates = rearrange(linear(x, weights.gate), "b n k (h d) -> b n h k d", h=heads)
    attended = attention(query, key, value, mask, bias, gates)
    return linear(rearrange(attended, "b n h k d -> b n k (h d)"), weights.out)
