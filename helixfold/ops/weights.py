"""Named tuples of the parameters of each operator."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Affine(NamedTuple):
    """Parameters of a linear map, weight [out, in] and bias [out], or of a layer norm, both [c]."""

    weight: Tensor
    bias: Tensor | None = None

    def to(self, dtype: torch.dtype) -> "Affine":
        """Return the parameters in another dtype."""
        return Affine(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


class SelfAttentionWeights(NamedTuple):
    """Parameters of self-attention; `qkv` maps to the queries, the keys and the values of all heads, in this order."""

    norm: Affine
    qkv: Affine
    gate: Affine
    out: Affine


class GlobalAttentionWeights(NamedTuple):
    """Parameters of global attention; `query` maps to all heads, `key` and `value` to one."""

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
    """Parameters of triangle multiplication, without the right operand, which is an input."""

    norm_in: Affine
    left: Affine
    left_gate: Affine
    norm_out: Affine
    out: Affine
    gate: Affine


class PointAttentionWeights(NamedTuple):
    """Parameters of the logits of invariant point attention.

    `point_weight` is the weight of half the squared distances. `pair_bias` maps the layer norm of the pair
    representation to its term of the logits.
    """

    point_weight: Float[Tensor, " h"]
    norm: Affine
    pair_bias: Affine


class PointAttentionSizes(NamedTuple):
    """Sizes of invariant point attention: the number of heads, and the scalars and points of each head.

    `added_to_square` is added to the squared length of an attended point before the square root. `min_length` is the
    minimum of the lengths.
    """

    heads: int
    scalars: int
    query_points: int
    value_points: int
    added_to_square: float
    min_length: float
