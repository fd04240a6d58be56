"""Example calls of every operator with the arguments of the network, for benchmarks and `helixfold doctor`.

`TRIANGLE_CORE`, `OUTGOING` and `INCOMING` are the names of the cases that other packages also implement.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from helixfold.benchmark.measurement import Work
from helixfold.execution.nested import tensors, with_tensors_changed
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import of_blocks
from helixfold.model.presets import preset
from helixfold.ops.adam import AdamBuffers, AdamStep
from helixfold.ops.attention import attention
from helixfold.ops.constants import LINE
from helixfold.ops.dispatch import Op, forced, recorded
from helixfold.ops.fused_adam import fused_adam
from helixfold.ops.linear import layer_norm, linear, multiply
from helixfold.ops.residual import add_change
from helixfold.ops.structure.point_attention import point_attention
from helixfold.planning.passes import META

# An operator and the arguments it is called with.
Call: TypeAlias = tuple[Op[..., Any], tuple[Any, ...]]
# Names of the cases that other packages also implement.
TRIANGLE_CORE = "triangle attention, softmax(qk + bias)v alone"
OUTGOING, INCOMING = "triangle multiplication, outgoing", "triangle multiplication, incoming"
_CHANNELS_AT_ONCE = 8
_ADAM_STEP = AdamStep(
    count=1000, learning_rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0, ema_decay=0.999
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Preset and sizes of the network whose operators are called; `dtype` is the dtype of the activations."""

    preset: str = "model_1"
    residues: int = 256
    rows: int = 128  # of the MSA
    extra_rows: int = 1024
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, kw_only=True)
class OpCase:
    """An example call of an operator, or two calls that belong together.

    `calls` has each operator with its arguments. An `in_place` operator overwrites its arguments and has no gradients.
    """

    name: str
    calls: tuple[Call, ...]
    in_place: bool = False

    def __call__(self) -> list[Tensor]:
        """Make the calls, and return all tensors that they return."""
        outputs = [op(*arguments) for op, arguments in self.calls]
        return [each for output in outputs for each in tensors(output)]

    def leaves(self) -> list[Tensor]:
        """Return the tensors among the arguments that require gradients."""
        unique = {id(each): each for _, arguments in self.calls for each in tensors(arguments) if each.requires_grad}
        return list(unique.values())

    def in_float32(self) -> "OpCase":
        """Return the same case with copies of its arguments, in which all floating-point tensors are float32."""
        copies: dict[int, Tensor] = {}

        def copy(tensor: Tensor) -> Tensor:
            if id(tensor) not in copies:
                wide = tensor.detach().float() if tensor.is_floating_point() else tensor
                copies[id(tensor)] = wide.requires_grad_() if tensor.requires_grad else wide
            return copies[id(tensor)]

        return replace(self, calls=tuple((op, with_tensors_changed(copy, arguments)) for op, arguments in self.calls))

    def work(self, *, gradients: bool) -> Work:
        """Return the work of the forward pass, or with `gradients` of forward and backward pass.

        Operators in place have no FLOPs, and each argument counts twice. Otherwise the bytes are each argument and
        result once; in the backward pass also the gradients of both, and the arguments again. The arguments must be on
        the meta device, so that nothing is computed.
        """
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
                # The backward pass reads the arguments and the outputs' gradients, and writes the arguments' gradients.
                read, written = 2 * read + written, written + sum(each.nbytes for each in leaves)
        return Work(flops=int(counter.get_total_flops()), bytes=read + written)


def op_cases(shape: Shape, device: torch.device | str) -> Iterator[OpCase]:
    """Yield the cases of all operators on a device, one by one, because all together may not fit into memory.

    Arguments are random, or ones if they do not require gradients, with the shapes of a training pass of the preset.
    An operator without a named case gets a case with the arguments of its first call in the network.
    """
    for name, calls in _meta_calls(shape).items():
        real = partial(_real, device=device, copies={})
        yield OpCase(
            name=name,
            calls=tuple((op, with_tensors_changed(real, arguments)) for op, arguments in calls),
            in_place=calls[0][0] is fused_adam,
        )


def _real(tensor: Tensor, device: torch.device | str, copies: dict[object, Tensor]) -> Tensor:
    """Return a tensor of the same shape on a device: random if it requires gradients, and ones otherwise.

    Equal views of one tensor become the same tensor; `copies` has the tensors so far.
    """
    key = tensor.untyped_storage()._cdata, tensor.shape, tensor.stride()
    if key not in copies:
        copies[key] = torch.ones_like(tensor, device=device)
        if tensor.requires_grad:
            copies[key].normal_(std=tensor.shape[1] ** -0.5 if tensor.ndim == 2 else 1.0).requires_grad_()
    return copies[key]


@cache
def _meta_calls(shape: Shape) -> dict[str, tuple[Call, ...]]:
    """Return the calls of each case on meta tensors.

    They come from a forward pass in training with one block per stack; a few calls are added.
    """
    model, r = replace(of_blocks(preset(shape.preset).model, 1), template=None), shape.residues
    with META, recorded() as calls:
        network = AlphaFold(model).train()
        batch = random_batch(r, shape.rows, shape.extra_rows, 0, META, method=model.method)
        network.fold(Whole(), [batch], None, shape.dtype)
    names = {id(parameter): name.rsplit(".", 2)[0] for name, parameter in network.named_parameters()}
    by_module: dict[str, dict[str, Call]] = {}
    for op, arguments in calls:
        module = next((names[id(each)] for each in tensors(arguments) if id(each) in names), "")
        by_module.setdefault(module, {}).setdefault(op.name, (op, arguments))

    def stream(*sizes: int) -> Tensor:
        return torch.empty(1, *sizes, dtype=shape.dtype, device=META, requires_grad=True)

    def rows_of(update: str, *ops: str) -> tuple[Call, ...]:
        return tuple(by_module[f"evoformer.blocks.0.{update}"][op] for op in ops)

    pairs = [stream(r, r, model.c_z) for _ in range(2)]
    heads = [stream(r, model.evoformer.pair_heads, r, model.c_z // model.evoformer.pair_heads) for _ in range(3)]
    mask, bias = torch.empty(1, r, r, device=META), stream(model.evoformer.pair_heads, r, r)
    dropout_mask = torch.empty(1, 1, r, model.c_z, dtype=shape.dtype, device=META)
    rows = {
        "MSA row attention": rows_of("row_attention", "self_attention"),
        "MSA column attention": rows_of("column_attention", "self_attention"),
        "triangle attention, starting node": rows_of("triangle_starting", "self_attention"),
        "triangle attention, ending node": rows_of("triangle_ending", "self_attention"),
        TRIANGLE_CORE: ((attention, (*heads, mask, bias)),),
        "extra MSA global column attention": (
            by_module["extra_msa_stack.blocks.0.column_attention"]["global_attention"],
        ),
        OUTGOING: rows_of("triangle_outgoing", "triangle_update"),
        INCOMING: rows_of("triangle_incoming", "triangle_update"),
        "MSA transition": rows_of("msa_transition", "transition"),
        "pair transition": rows_of("pair_transition", "transition"),
        "outer product mean": rows_of("outer_product_mean", "outer_product_mean"),
        "norm and maps of the outer product": rows_of("outer_product_mean", "outer_product_operands"),
        "norm and map of a pair bias": rows_of("row_attention", "norm_linear"),
        "layer norm of the pair": ((layer_norm, (pairs[0], network.recycling_embedder.norm_pair.affine)),),
        "pair and its change": ((add_change, tuple(pairs)),),
        "pair and its change, dropout": ((add_change, (*pairs, dropout_mask)),),
        # The structure module always computes in float32.
        "invariant point attention": (next(call for call in calls if call[0] is point_attention),),
        # Ranks that share a triangle multiplication multiply some channels of both operands at a time.
        "product of some channels of a triangle": (
            (multiply, (stream(_CHANNELS_AT_ONCE, r, r), stream(_CHANNELS_AT_ONCE, r, r).mT)),
        ),
        "map to the distogram": ((linear, (pairs[0], network.heads.distogram.linear.affine)),),
        "Adam, moving average, all parameters": (_update(shape),),
    }
    with_case = {op.name for calls in rows.values() for op, _ in calls}
    rows |= {name: (call,) for each in by_module.values() for name, call in each.items() if name not in with_case}
    if shape.dtype != torch.float32:
        del rows["invariant point attention"], rows["invariant_point_attention"]
    return rows


def _update(shape: Shape) -> Call:
    """Return a call of the fused optimizer step for all parameters."""
    with META:
        elements = sum(-(-each.numel() // LINE) for each in AlphaFold(preset(shape.preset).model).parameters()) * LINE
        flat = [torch.empty(elements) for _ in range(5)]
        working = torch.empty(elements, dtype=torch.bfloat16) if shape.dtype == torch.bfloat16 else None
        buffers = AdamBuffers(
            master=flat[0], first_moment=flat[1], second_moment=flat[2], average=flat[3], working=working
        )  # fmt: skip
        return fused_adam, (buffers, flat[4], torch.empty(elements // LINE), _ADAM_STEP)
