"""The parameters that operators take, each operator's in one tuple."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Affine(NamedTuple):
    """The parameters of a linear map, weight [out, in] and offset [out], or scale and offset [c] of a norm."""

    weight: Tensor
    bias: Tensor | None = None

    def to(self, dtype: torch.dtype) -> "Affine":
        """Return the same parameters in another dtype."""
        return Affine(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


class SelfAttentionWeights(NamedTuple):
    """Parameters of self-attention; `qkv` maps to query, key and value of all heads side by side."""

    norm: Affine
    qkv: Affine
    gate: Affine
    out: Affine


class GlobalAttentionWeights(NamedTuple):
    """Parameters of global attention; `key` and `value` have one head, which all queries share."""

    norm: Affine
    query: Affine
    key: Affine
    value: Affine
    gate: Affine
    out: Affine


class TransitionWeights(NamedTuple):
    """Parameters of a transition: a norm, and maps to the hidden channels and back."""

    norm: Affine
    expand: Affine
    contract: Affine


class TriangleOperandWeights(NamedTuple):
    """Parameters that an operand of triangle multiplication is read from the edges with."""

    norm: Affine
    project: Affine
    gate: Affine


class TriangleWeights(NamedTuple):
    """Parameters of the update by triangle multiplication: of its left operand, then of its output."""

    norm_in: Affine
    left: Affine
    left_gate: Affine
    norm_out: Affine
    out: Affine
    gate: Affine


class PointAttentionWeights(NamedTuple):
    """Parameters of invariant point attention's logits.

    `point_weight` is what half a squared distance is multiplied by, `pair_bias` maps the normalised pair to its part of
    the logits.
    """

    point_weight: Float[Tensor, " h"]
    norm: Affine
    pair_bias: Affine
