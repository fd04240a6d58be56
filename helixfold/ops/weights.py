"""Parameters of operators, in one tuple for each operator."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Affine(NamedTuple):
    """Parameters of a linear map, weight [out, in] and bias [out], or of a layer norm, both [c]."""

    weight: Tensor
    bias: Tensor | None = None

    def to(self, dtype: torch.dtype) -> "Affine":
        """Return the same parameters in another dtype."""
        return Affine(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


class SelfAttentionWeights(NamedTuple):
    """Parameters of self-attention; `qkv` maps to the queries, then the keys, then the values of all heads."""

    norm: Affine
    qkv: Affine
    gate: Affine
    out: Affine


class GlobalAttentionWeights(NamedTuple):
    """Parameters of global attention; `query` has all heads, `key` and `value` have one."""

    norm: Affine
    query: Affine
    key: Affine
    value: Affine
    gate: Affine
    out: Affine


class TransitionWeights(NamedTuple):
    """Parameters of a transition: a layer norm, and maps to the hidden channels and back."""

    norm: Affine
    expand: Affine
    contract: Affine


class TriangleOperandWeights(NamedTuple):
    """Parameters of one operand of triangle multiplication."""

    norm: Affine
    project: Affine
    gate: Affine


class TriangleWeights(NamedTuple):
    """Parameters of a triangle multiplication's left operand and output; the right operand is an input."""

    norm_in: Affine
    left: Affine
    left_gate: Affine
    norm_out: Affine
    out: Affine
    gate: Affine


class PointAttentionWeights(NamedTuple):
    """Parameters of invariant point attention's logits.

    `point_weight` is the factor of half the squared distance, `pair_bias` maps the normalised pair to its logit term.
    """

    point_weight: Float[Tensor, " h"]
    norm: Affine
    pair_bias: Affine


class PointAttentionSizes(NamedTuple):
    """Sizes of invariant point attention: its heads, and each head's scalars and points.

    `added_to_square` is added to the squared length of an attended point before the root; no length is less than
    `least_length`.
    """

    heads: int
    scalars: int
    query_points: int
    value_points: int
    added_to_square: float
    least_length: float
