"""Arguments for the kernel of each operator, made on the default device, at any size.

`torch.device` as a context chooses the device, so that large tensors are never made on a CPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout, normalize

from helixfold.ops.attention import attention
from helixfold.ops.device_properties import properties_of
from helixfold.ops.dispatch import Op, forced, recorded
from helixfold.ops.linear import layer_norm, norm_linear
from helixfold.ops.outer_product import outer_product_mean, outer_product_operand, outer_product_operands
from helixfold.ops.residual import Residual, add_change, added, residual_norm
from helixfold.ops.self_attention import self_attention
from helixfold.ops.structure.point_attention import point_attention
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from helixfold.ops.structure.update_frames import update_frames
from helixfold.ops.transition import transition
from helixfold.ops.triangle import triangle_multiplication, triangle_operand, triangle_update
from helixfold.ops.weights import (
    SelfAttentionWeights,
    TransitionWeights,
    TriangleOperandWeights,
    TriangleWeights,
)
from tests.ops.comparing import affine, mask, norm
from tests.ops.point_arguments import point_arguments


@dataclass(frozen=True, kw_only=True)
class Size:
    """Lengths and channels. `rows` of the pair are computed by updates whose rows do not depend on each other."""

    residues: int
    rows: int
    sequences: int
    batch: int = 1
    c_m: int = 256
    c_z: int = 128
    head: int = 32  # channels of a head
    c_outer: int = 32
    points: dict[str, Any] = field(default_factory=lambda: {"h": 12, "c_z": 128, "d": 16, "q": 4, "p": 8}, repr=False)

    def __str__(self) -> str:
        return f"{self.batch}x{self.residues}-{self.rows}-{self.sequences}"


SMALL = Size(
    residues=5, rows=3, sequences=4, batch=2, c_m=64, c_z=64, head=32, c_outer=8, points={"h": 2, "c_z": 32}
)  # fmt: skip
# Those of a network; the last two have remainders in every tile and, in a batch, samples one after the other.
REAL = [
    Size(residues=256, rows=256, sequences=128),
    Size(residues=384, rows=128, sequences=512),
    Size(residues=1024, rows=16, sequences=32),
    Size(residues=257, rows=31, sequences=127),
    Size(residues=401, rows=7, sequences=65, batch=2),
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operator, its reference, and a function that makes its arguments, `make(size, transposed)`.

    `by_rows` are the numbers of the arguments of which row i (dim 1) is all that row i of the result depends on, beside
    arguments that all rows share; none if rows depend on each other. `row_dim` is the result's dim of rows. If `adds`,
    the result is added to a stream, after dropout by the last argument if that is not None: to the first argument, of
    which it is also made unless the operator is the outer product mean.
    """

    op: Op[..., Any]
    make: Callable[[Size, bool], list[Any]]
    by_rows: tuple[int, ...] = ()
    row_dim: int = 1
    adds: bool = False

    def reference(self, *arguments: Any) -> Any:
        """Return what the reference computes; a mask of dropout has the stream's dtype, as in the network."""
        arguments = self._settled(arguments)
        if not self.adds:
            return self.op.reference(*arguments)
        return add_change.reference(arguments[0], self.op.reference(*self._of_change(arguments)), arguments[-1])

    def run(self, *arguments: Any) -> Any:
        """Return what the kernel computes; fail where another backend would."""
        arguments = self._settled(arguments)
        with forced("triton") as used, recorded() as calls:
            if self.adds:
                found = added(Residual(arguments[0], arguments[-1]), self.op, *self._of_change(arguments))
                assert len(calls) == 1, "the addition was left to its own operator"
            else:
                found = self.op(*arguments)
        assert used[self.op.name] == 1, self.op.unsupported_reasons(properties_of(arguments[0].device), *arguments)[
            "triton"
        ]
        return found

    def skip_what_is_left_to_cublas(self, arguments: list[Any]) -> None:
        """Skip a test in float32 of an operator that is mostly products, which on a GPU has no kernel for them."""
        if self.adds and self.op is self_attention:
            pytest.skip("exact products of the output map are left to cuBLAS, before an addition")
        of_change = self._of_change(arguments) if self.adds else arguments
        reason = self.op.unsupported_reasons(properties_of(arguments[0].device), *of_change)["triton"]
        if reason is not None and "left to cuBLAS" in reason:
            pytest.skip(reason)

    def _settled(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        *others, dropout_mask = arguments
        if (self.op is not add_change and not self.adds) or dropout_mask is None:
            return tuple(arguments)
        return *others, dropout_mask.to(others[0].dtype)

    def _of_change(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Return the operator's own arguments."""
        return arguments[self.op is outer_product_mean : -1]


def stream(*shape: int, transposed: bool = False) -> Tensor:
    """Off centre; a transposed one has rows and columns swapped in memory."""
    if transposed:
        b, rows, columns, c = shape
        return torch.randn(b, columns, rows, c).add_(0.5).transpose(1, 2).requires_grad_()
    return torch.randn(shape).add_(0.5).requires_grad_()


def _attention(size: Size, transposed: bool) -> list[Any]:
    b, n, r, h, d = size.batch, size.rows, size.residues, size.c_z // size.head, size.head
    heads = [stream(b, n, r, h * d, transposed=transposed).unflatten(-1, (h, d)).transpose(2, 3) for _ in range(4)]
    query, key, value, gate = (each.detach().requires_grad_() for each in heads)
    bias = torch.randn(b, r, r, h).permute(0, 3, 1, 2).requires_grad_()
    return [query, key, value, mask(b, n, r), bias, gate]


def _self_attention(rows: int, c: int, size: Size, transposed: bool) -> list[Any]:
    b, n, r, heads = size.batch, rows, size.residues, c // size.head
    weights = SelfAttentionWeights(norm(c), affine(3 * c, c, bias=False), affine(c, c), affine(c, c))
    bias = torch.randn(b, r, r, heads).permute(0, 3, 1, 2).requires_grad_()
    return [stream(b, n, r, c, transposed=transposed), mask(b, n, r), bias, weights, heads]


def _triangle_attention(size: Size, transposed: bool) -> list[Any]:
    """The bias is made of the pair itself."""
    pair, pair_mask, _, weights, heads = _self_attention(size.residues, size.c_z, size, transposed)
    return [pair, pair_mask, affine(heads, size.c_z, bias=False), weights, heads]


def _columns(size: Size, transposed: bool) -> list[Any]:
    b, s, r, c = size.batch, size.sequences, size.residues, size.c_m
    weights = SelfAttentionWeights(norm(c), affine(3 * c, c, bias=False), affine(c, c), affine(c, c))
    return [stream(b, r, s, c, transposed=transposed), mask(b, r, s), None, weights, c // size.head]


def _triangle_weights(size: Size) -> TriangleWeights:
    c = size.c_z
    return TriangleWeights(norm(c), affine(c, c), affine(c, c), norm(c), affine(c, c), affine(c, c))


def _pair(size: Size, transposed: bool, rows: int | None = None) -> list[Tensor]:
    b, r = size.batch, size.residues
    return [stream(b, rows or r, r, size.c_z, transposed=transposed), mask(b, rows or r, r)]


def _triangle_operand(size: Size, transposed: bool) -> list[Any]:
    c = size.c_z
    return [*_pair(size, transposed), TriangleOperandWeights(norm(c), affine(c, c), affine(c, c))]


def _triangle_multiplication(size: Size, transposed: bool) -> list[Any]:
    right = torch.randn(size.batch, size.c_z, size.residues, size.residues).requires_grad_()
    return [*_pair(size, transposed, size.rows), right, _triangle_weights(size)]


def _triangle_update(size: Size, transposed: bool) -> list[Any]:
    c = size.c_z
    return [*_pair(size, transposed), affine(c, c), affine(c, c), _triangle_weights(size)]


def _transition(rows: int, c: int, size: Size, transposed: bool) -> list[Any]:
    x = stream(size.batch, rows, size.residues, c, transposed=transposed)
    return [x, TransitionWeights(norm(c), affine(4 * c, c), affine(c, 4 * c))]


def _outer_product(size: Size, transposed: bool) -> list[Any]:
    """Halves of an MSA's columns; its sequences lie first in memory, or in the left half last if transposed."""
    b, i, j, s, c = size.batch, size.rows, size.residues, size.sequences, size.c_outer
    left_mask, right_mask = mask(b, i, s), mask(b, s, j)
    left = torch.randn(b, i, s, c) if transposed else torch.randn(b, s, i, c).transpose(1, 2)
    right = torch.randn(b, s, j, c)
    halves = (left * left_mask[..., None]).requires_grad_(), (right * right_mask[..., None]).requires_grad_()
    return [*halves, left_mask, right_mask, affine(size.c_z, c * c)]


def _with_dropout(arguments: list[Any]) -> list[Any]:
    """The arguments of an operator and a dropout mask that is one for all rows of its stream."""
    b, _, *rest = arguments[0].shape
    return [*arguments, dropout(torch.ones(b, 1, *rest), 0.25)]


def _added_outer_product(size: Size, transposed: bool) -> list[Any]:
    pair = stream(size.batch, size.rows, size.residues, size.c_z, transposed=transposed)
    return [pair, *_outer_product(size, transposed), None]


def _outer_operand(size: Size, transposed: bool) -> list[Any]:
    b, i, s, c = size.batch, size.residues, size.sequences, size.c_m
    x = stream(b, i, s, c, transposed=transposed)
    return [x, mask(b, i, s), norm(c), affine(size.c_outer, c)]


def _outer_operands(size: Size, transposed: bool) -> list[Any]:
    return [*_outer_operand(size, transposed), affine(size.c_outer, size.c_m)]


def _add_change(size: Size, transposed: bool) -> list[Any]:
    shape = (size.batch, size.rows, size.residues, size.c_z)
    kept = dropout(torch.ones(shape[0], 1, *shape[2:]), 0.25)
    return [stream(*shape), stream(*shape, transposed=transposed), kept]


def _points(size: Size, transposed: bool) -> list[Any]:
    given = point_arguments(size.residues, b=size.batch, **size.points)
    pair = 4
    if transposed:
        given[pair] = given[pair].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    return given


def _residual_norm(size: Size, transposed: bool) -> list[Any]:
    given = [torch.randn(size.batch, size.residues, 384) for _ in range(3)]
    if transposed:
        given = [each.transpose(0, 1).contiguous().transpose(0, 1) for each in given]
    stream, change, kept = given
    return [stream.requires_grad_(), change.requires_grad_(), norm(384), (kept > -1).float()]


def _frames(size: Size, transposed: bool) -> list[Any]:
    b, r = size.batch, size.residues
    quaternion = normalize(torch.randn(b, r, 4), dim=-1)
    given = [quaternion, quaternion_to_rotation(quaternion), 3 * torch.randn(b, r, 3), torch.randn(b, r, 6)]
    return [each.requires_grad_() for each in given]


CASES = {
    "attention": Case(op=attention, make=_attention, by_rows=(0, 1, 2, 3, 5)),
    "row attention": Case(
        op=self_attention,
        make=lambda size, transposed: _self_attention(size.sequences, size.c_m, size, transposed),
        by_rows=(0, 1),
    ),
    "triangle attention": Case(
        op=self_attention,
        make=lambda size, transposed: _self_attention(size.rows, size.c_z, size, transposed),
        by_rows=(0, 1),
    ),
    "triangle attention with its own bias": Case(op=self_attention, make=_triangle_attention),
    "column attention": Case(op=self_attention, make=_columns, by_rows=(0, 1)),
    "triangle operand": Case(op=triangle_operand, make=_triangle_operand, by_rows=(0, 1), row_dim=2),
    "triangle multiplication": Case(op=triangle_multiplication, make=_triangle_multiplication, by_rows=(0, 1)),
    "triangle update": Case(op=triangle_update, make=_triangle_update),
    "MSA transition": Case(
        op=transition,
        make=lambda size, transposed: _transition(size.sequences, size.c_m, size, transposed),
        by_rows=(0,),
    ),
    "pair transition": Case(
        op=transition, make=lambda size, transposed: _transition(size.rows, size.c_z, size, transposed), by_rows=(0,)
    ),
    "outer product": Case(op=outer_product_mean, make=_outer_product, by_rows=(0, 2)),
    "outer product operand": Case(op=outer_product_operand, make=_outer_operand, by_rows=(0, 1)),
    "outer product operands": Case(op=outer_product_operands, make=_outer_operands),
    "pair bias": Case(
        op=norm_linear,
        make=lambda size, transposed: [
            *_pair(size, transposed, size.rows)[:1],
            norm(size.c_z),
            affine(size.c_z // size.head, size.c_z, bias=False),
        ],
        by_rows=(0,),
    ),
    "layer norm": Case(
        op=layer_norm,
        make=lambda size, transposed: [*_pair(size, transposed, size.rows)[:1], norm(size.c_z)],
        by_rows=(0,),
    ),
    "row attention and its stream": Case(
        op=self_attention,
        make=lambda size, turned: _with_dropout(_self_attention(size.sequences, size.c_m, size, turned)),
        by_rows=(0, 1),
        adds=True,
    ),
    "triangle attention and its stream": Case(
        op=self_attention, make=lambda size, turned: _with_dropout(_triangle_attention(size, turned)), adds=True
    ),
    "column attention and its stream": Case(
        op=self_attention, make=lambda size, turned: [*_columns(size, turned), None], by_rows=(0, 1), adds=True
    ),
    "triangle multiplication and its stream": Case(
        op=triangle_multiplication,
        make=lambda size, turned: _with_dropout(_triangle_multiplication(size, turned)),
        by_rows=(0, 1),
        adds=True,
    ),
    "triangle update and its stream": Case(
        op=triangle_update, make=lambda size, turned: _with_dropout(_triangle_update(size, turned)), adds=True
    ),
    "MSA transition and its stream": Case(
        op=transition,
        make=lambda size, turned: [*_transition(size.sequences, size.c_m, size, turned), None],
        by_rows=(0,),
        adds=True,
    ),
    "pair transition and its stream": Case(
        op=transition,
        make=lambda size, turned: [*_transition(size.rows, size.c_z, size, turned), None],
        by_rows=(0,),
        adds=True,
    ),
    "outer product and its stream": Case(
        op=outer_product_mean, make=_added_outer_product, by_rows=(0, 1, 3), adds=True
    ),
    "pair and its change": Case(op=add_change, make=_add_change, by_rows=(0, 1)),
    "invariant point attention": Case(op=point_attention, make=_points),
    "residual norm": Case(op=residual_norm, make=_residual_norm),
    "frames": Case(op=update_frames, make=_frames),
}
# The structure module computes in float32 whatever the trunk does.
FLOAT32_ALONE = {"invariant point attention", "residual norm", "frames"}
