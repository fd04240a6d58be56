"""Self-attention within rows, from the stream to its change: norm, projections, attention, gate, output."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from helixfold.ops.attention import attention, penalty
from helixfold.ops.cpu.self_attention import self_attention_rows
from helixfold.ops.dispatch import Backend, Op
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.linear import Affine, linear


def self_attention(
    x: Float[Tensor, "b n k c"],
    mask: Float[Tensor, "b n k"],
    bias: Float[Tensor, "b h k k"] | None,
    norm: Affine,
    qkv: Affine,
    gate: Affine,
    out: Affine,
    heads: int,
) -> Float[Tensor, "b n k c"]:
    """AlphaFold 2, Suppl. Alg. 7, 8 and 13; `qkv` maps to query, key and value of all heads side by side."""
    return SELF_ATTENTION(x, mask, bias, norm, qkv, gate, out, heads)


def self_attention_reference(
    x: Float[Tensor, "b n k c"],
    mask: Float[Tensor, "b n k"],
    bias: Float[Tensor, "b h k k"] | None,
    norm: Affine,
    qkv: Affine,
    gate: Affine,
    out: Affine,
    heads: int,
) -> Float[Tensor, "b n k c"]:
    """What `self_attention` means, of operators that have backends of their own."""
    x = layer_norm(x, norm)
    query, key, value = rearrange(linear(x, qkv), "b n k (three h d) -> three b n h k d", three=3, h=heads)
    gates = rearrange(linear(x, gate), "b n k (h d) -> b n h k d", h=heads)
    return linear(rearrange(attention(query, key, value, mask, bias, gates), "b n h k d -> b n k (h d)"), out)


def _by_rows(
    x: Tensor,
    mask: Tensor,
    bias: Tensor | None,
    norm: Affine,
    qkv: Affine,
    gate: Affine,
    out: Affine,
    heads: int,
) -> Tensor:
    return self_attention_rows(x, penalty(mask), bias, norm, qkv, gate, out, heads)


def _refusal_of_rows(x: Tensor, *_: object, **__: object) -> str | None:
    if x.dtype == torch.float64:
        return "float64 is left to the reference"
    return "there is nothing to compute" if x.numel() == 0 else None


SELF_ATTENTION = Op(
    "self_attention",
    Backend(name="rows", devices=("cpu",), refusal=_refusal_of_rows, run=_by_rows),
    Backend(name="reference", run=self_attention_reference),
)
