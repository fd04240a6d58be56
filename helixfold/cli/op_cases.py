"""Every operator with arguments as a block of the network gives them to it, for benchmarks and `helixfold doctor`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from helixfold.config import ModelConfig
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.adam import AdamBuffers, AdamStep
from helixfold.ops.attention import attention
from helixfold.ops.constants import LINE
from helixfold.ops.dispatch import Op, forced
from helixfold.ops.fused_adam import fused_adam
from helixfold.ops.global_attention import global_attention
from helixfold.ops.invariant_point import invariant_point_attention
from helixfold.ops.layer_norm import layer_norm
from helixfold.ops.linear import linear
from helixfold.ops.multiply import multiply
from helixfold.ops.norm_linear import norm_linear
from helixfold.ops.outer_product import outer_product_mean
from helixfold.ops.residual import add_change
from helixfold.ops.self_attention import self_attention
from helixfold.ops.transition import transition
from helixfold.ops.triangle import triangle_multiplication, triangle_operand
from helixfold.ops.weights import (
    Affine,
    GlobalAttentionWeights,
    PointAttentionWeights,
    SelfAttentionWeights,
    TransitionWeights,
    TriangleOperandWeights,
    TriangleWeights,
)
from helixfold.presets import preset

Call: TypeAlias = tuple[Op[..., Any], tuple[Any, ...]]
# Cases that peers have too.
TRIANGLE_CORE = "triangle attention, softmax(qk + bias)v alone"
OUTGOING, INCOMING = "triangle multiplication, outgoing", "triangle multiplication, incoming"
_CHANNELS_AT_ONCE = 8
_STEP = AdamStep(
    number=1000, learning_rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0, ema_decay=0.999
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of which network and at which size; `dtype` is that of the activations."""

    preset: str = "model_1"
    residues: int = 256
    rows: int = 128  # of the MSA
    extra_rows: int = 1024
    dtype: torch.dtype = torch.float32

    @property
    def model(self) -> ModelConfig:
        return preset(self.preset).model


@dataclass(frozen=True, kw_only=True)
class Work:
    """Floating-point operations of matrix products, and the bytes that must be read and written at least."""

    flops: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class OpCase:
    """One or two calls that belong together. `in_place` operators write what they read and have no gradients."""

    name: str
    calls: tuple[Call, ...]
    in_place: bool = False

    def __call__(self) -> list[Tensor]:
        outputs = [op(*arguments) for op, arguments in self.calls]
        return [each for output in outputs for each in tensors(output)]

    @property
    def backends(self) -> list[str]:
        """Names of all backends of its operators, in their order."""
        return list(dict.fromkeys(backend.name for op, _ in self.calls for backend in op.backends))

    def leaves(self) -> list[Tensor]:
        """What gradients are asked for."""
        unique = {id(each): each for _, arguments in self.calls for each in tensors(arguments) if each.requires_grad}
        return list(unique.values())

    def work(self, *, gradients: bool) -> Work:
        """Of the forward pass, or of both passes. The arguments must be on the meta device: nothing is computed."""
        unique = {id(each): each for _, arguments in self.calls for each in tensors(arguments)}
        read = sum(each.nbytes for each in unique.values())
        if self.in_place:
            return Work(flops=0, bytes=2 * read)
        with forced("reference"), torch.set_grad_enabled(gradients), FlopCounterMode(display=False) as counter:
            outputs = self()
            written = sum(each.nbytes for each in outputs)
            if gradients:
                leaves = self.leaves()
                torch.autograd.grad(outputs, leaves, [torch.ones_like(each) for each in outputs])
                # The second time: what was read, and the outputs' gradients, for the gradients of what was read.
                read, written = 2 * read + written, written + sum(each.nbytes for each in leaves)
        return Work(flops=int(counter.get_total_flops()), bytes=read + written)


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors within."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


def op_cases(shape: Shape, device: torch.device | str) -> Iterator[OpCase]:
    """Cases one after the other, each made when it is asked for: together they may not fit into memory."""
    make = _Arguments(dtype=shape.dtype, device=torch.device(device))
    for cases in (_attention_cases, _triangle_cases, _msa_and_pair_cases, _other_cases):
        yield from cases(shape, make)


@dataclass(frozen=True, kw_only=True)
class _Arguments:
    """Random arguments. Activations and parameters require gradients, masks of ones do not."""

    dtype: torch.dtype
    device: torch.device

    def stream(self, *shape: int, turned: bool = False) -> Tensor:
        values = torch.randn(1, *shape, dtype=self.dtype, device=self.device)
        return (values.transpose(1, 2) if turned else values).requires_grad_()

    def ones(self, *shape: int, turned: bool = False) -> Tensor:
        values = torch.ones(1, *shape, device=self.device)
        return values.transpose(1, 2) if turned else values

    def affine(self, c_out: int, c_in: int, *, bias: bool = True) -> Affine:
        weight = torch.randn(c_out, c_in, device=self.device).mul_(c_in**-0.5).requires_grad_()
        return Affine(weight, torch.randn(c_out, device=self.device).requires_grad_() if bias else None)

    def norm(self, c: int) -> Affine:
        return Affine(*(torch.randn(c, device=self.device).requires_grad_() for _ in range(2)))

    def self_attention(self, c: int) -> SelfAttentionWeights:
        qkv = self.affine(3 * c, c, bias=False)
        return SelfAttentionWeights(self.norm(c), qkv, self.affine(c, c), self.affine(c, c))


def _attention_cases(shape: Shape, make: _Arguments) -> Iterator[OpCase]:
    model, r, s = shape.model, shape.residues, shape.rows
    stack = model.evoformer
    c_m, c_z, h_m, h_z = stack.c_m, model.c_z, stack.msa_heads, stack.pair_heads

    def case(name: str, c: int, heads: int, rows: int, length: int, *, bias: bool, turned: bool) -> OpCase:
        sizes = (length, rows) if turned else (rows, length)
        x, mask = make.stream(*sizes, c, turned=turned), make.ones(*sizes, turned=turned)
        term = make.stream(heads, length, length) if bias else None
        return OpCase(name=name, calls=((self_attention, (x, mask, term, make.self_attention(c), heads)),))

    yield case("MSA row attention", c_m, h_m, s, r, bias=True, turned=False)
    yield case("MSA column attention", c_m, h_m, r, s, bias=False, turned=True)
    yield case("triangle attention, starting node", c_z, h_z, r, r, bias=True, turned=False)
    yield case("triangle attention, ending node", c_z, h_z, r, r, bias=True, turned=True)
    heads = [make.stream(r, h_z, r, c_z // h_z) for _ in range(3)]
    arguments = (*heads, make.ones(r, r), make.stream(h_z, r, r))
    yield OpCase(name=TRIANGLE_CORE, calls=((attention, arguments),))

    extra = model.extra_msa
    c, width = extra.c_m, extra.c_m // extra.msa_heads
    x = make.stream(shape.extra_rows, r, c, turned=True)
    maps = [make.affine(size, c, bias=False) for size in (c, width, width)] + [make.affine(c, c) for _ in range(2)]
    mask = make.ones(shape.extra_rows, r, turned=True)
    yield OpCase(
        name="extra MSA global column attention",
        calls=((global_attention, (x, mask, GlobalAttentionWeights(make.norm(c), *maps), extra.msa_heads)),),
    )


def _triangle_cases(shape: Shape, make: _Arguments) -> Iterator[OpCase]:
    r, c_z, c = shape.residues, shape.model.c_z, shape.model.evoformer.c_triangle
    for name, turned in ((OUTGOING, False), (INCOMING, True)):
        pair, mask = make.stream(r, r, c_z, turned=turned), make.ones(r, r, turned=turned)
        norm, right = make.norm(c_z), [make.affine(c, c_z) for _ in "pg"]
        operand = make.stream(c, r, r)
        front = norm, make.affine(c, c_z), make.affine(c, c_z)
        weights = TriangleWeights(*front, make.norm(c), make.affine(c_z, c), make.affine(c_z, c_z))
        yield OpCase(
            name=name,
            calls=(
                (triangle_operand, (pair, mask, TriangleOperandWeights(norm, *right))),
                (triangle_multiplication, (pair, mask, operand, weights)),
            ),
        )


def _msa_and_pair_cases(shape: Shape, make: _Arguments) -> Iterator[OpCase]:
    model, r, s = shape.model, shape.residues, shape.rows
    c_m, c_z, factor, c = model.evoformer.c_m, model.c_z, model.evoformer.transition_factor, model.evoformer.c_outer
    streams: dict[str, Callable[[], Tensor]] = {
        "MSA": lambda: make.stream(s, r, c_m),
        "pair": lambda: make.stream(r, r, c_z),
    }
    for name, stream in streams.items():
        x = stream()
        width = x.shape[-1]
        maps = make.affine(factor * width, width), make.affine(width, factor * width)
        yield OpCase(name=f"{name} transition", calls=((transition, (x, TransitionWeights(make.norm(width), *maps))),))

    halves = make.stream(r, s, c), make.stream(s, r, c)
    masks = make.ones(r, s), make.ones(s, r)
    yield OpCase(name="outer product mean", calls=((outer_product_mean, (*halves, *masks, make.affine(c_z, c * c))),))

    columns = make.stream(s, r, c_m, turned=True)
    yield OpCase(
        name="norm and map of the outer product",
        calls=((norm_linear, (columns, make.norm(c_m), make.affine(c, c_m))),),
    )
    bias = make.norm(c_z), make.affine(model.evoformer.pair_heads, c_z, bias=False)
    yield OpCase(name="norm and map of a pair bias", calls=((norm_linear, (make.stream(r, r, c_z), *bias)),))
    yield OpCase(name="layer norm of the pair", calls=((layer_norm, (make.stream(r, r, c_z), make.norm(c_z))),))
    pair, change = make.stream(r, r, c_z), make.stream(r, r, c_z)
    yield OpCase(name="pair and its change", calls=((add_change, (pair, change)),))
    kept = make.ones(1, r, c_z).to(shape.dtype)
    yield OpCase(name="pair and its change, dropout", calls=((add_change, (pair, change, kept)),))


def _other_cases(shape: Shape, make: _Arguments) -> Iterator[OpCase]:
    model, r, structure = shape.model, shape.residues, shape.model.structure
    if shape.dtype == torch.float32:
        # The structure module computes in float32 whatever the trunk does.
        h, d, q, p = structure.heads, structure.c_scalar, structure.query_points, structure.value_points
        arguments = (
            *(make.stream(h, r, d) for _ in range(3)),
            *(make.stream(h, r, count, 3) for count in (q, q, p)),
            make.stream(r, r, model.c_z),
            make.ones(r),
            make.ones(r),
            PointAttentionWeights(
                torch.rand(h, device=make.device).requires_grad_(), make.norm(model.c_z), make.affine(h, model.c_z)
            ),
        )
        yield OpCase(name="invariant point attention", calls=((invariant_point_attention, arguments),))

    # As ranks that share a triangle multiplication multiply some channels of both operands.
    operands = make.stream(_CHANNELS_AT_ONCE, r, r), make.stream(_CHANNELS_AT_ONCE, r, r).mT
    yield OpCase(name="product of some channels of a triangle", calls=((multiply, operands),))

    bins = model.heads.distogram_bins
    yield OpCase(
        name="map to the distogram", calls=((linear, (make.stream(r, r, model.c_z), make.affine(bins, model.c_z))),)
    )

    parameters = _parameters(model)
    flat = [torch.rand(parameters, device=make.device) for _ in range(5)]
    working = flat[0].to(torch.bfloat16) if shape.dtype == torch.bfloat16 else None
    buffers = AdamBuffers(
        master=flat[0], first_moment=flat[1], second_moment=flat[2], average=flat[3], working=working
    )  # fmt: skip
    scale = torch.ones(parameters // LINE, device=make.device)
    yield OpCase(
        name="Adam, moving average, all parameters",
        calls=((fused_adam, (buffers, flat[4], scale, _STEP)),),
        in_place=True,
    )


@cache
def _parameters(model: ModelConfig) -> int:
    """Elements of the optimizer's buffers."""
    with torch.device("meta"):
        return sum(-(-parameter.numel() // LINE) for parameter in AlphaFold(model).parameters()) * LINE
