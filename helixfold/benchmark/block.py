"""Measure one Evoformer block for `helixfold benchmark block`: forward and backward, by plain PyTorch, ours, peers."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from helixfold.benchmark.measurement import (
    PLAIN,
    BenchmarkDevice,
    Readings,
    Work,
    measure,
    replayed,
    show,
)
from helixfold.benchmark.options import BlockOptions, CommonOptions
from helixfold.benchmark.peers import BLOCKS, PEERS, built_once, compared, module_pass, require_peers
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.evoformer import EvoformerStack
from helixfold.model.presets import preset
from helixfold.model.update import Executor
from helixfold.ops.dispatch import forced

# The MSA stream, the pair stream, the MSA mask and the pair mask.
Streams = tuple[Tensor, Tensor, Tensor, Tensor]


def run(options: BlockOptions, common: CommonOptions) -> None:
    """Measure an Evoformer block, print the readings, and write them to the file of `common.json`, if it is set.

    Raise `InputError` before anything is measured if a peer cannot be imported.
    """
    require_peers(options.peer, options.preset, common.threads)
    show(partial(readings, options, common), common)


def readings(options: BlockOptions, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield two readings for each dtype: a forward pass without gradients, then forward and backward pass.

    Both are measured with plain PyTorch, with our operators, by the peers of the options and, on a GPU, replayed as a
    CUDA graph. The forward pass is also measured in slabs.
    """
    peers = {PEERS[name].name: BLOCKS[name] for name in options.peer}
    name = f"Evoformer block of {options.preset}, {options.residues} residues, {options.rows} rows"
    for dtype in common.dtypes:
        kind = getattr(torch, dtype)
        # Parameters are cast once here, as a run does before a prediction or a step.
        stack = evoformer(options.preset, 1, machine.device).to(kind)
        streams = random_streams(options.preset, options.residues, options.rows, kind, machine.device)
        for direction, gradients in (("forward", False), ("forward and backward", True)):
            stack.requires_grad_(gradients)
            inputs = leaves(streams, gradients=gradients)
            ways = {PLAIN: block_pass(stack, Whole(), inputs, "reference"), "ours": block_pass(stack, Whole(), inputs)}
            if machine.device.type == "cuda":
                ways["ours, replayed"] = replayed(ways["ours"], machine.device)
            ways |= {name: built_once(partial(block, options.preset, inputs)) for name, block in peers.items()}
            repeats = common.repeats or 5
            costs = measure(ways, machine.device, repeats)
            if not gradients:
                # Slabs are measured separately, because on a CPU they return memory to the system, which slows others.
                costs |= measure({"ours, in slabs": block_pass(stack, Slabs(), inputs)}, machine.device, repeats)
            flops = block_flops(options.residues, options.rows, options.preset, gradients=gradients)
            yield Readings(
                part="block",
                name=name,
                dtype=kind,
                passes=direction,
                costs=costs,
                work=Work(flops=flops, bytes=0),
                notes=tuple(compared(costs, peers)),
            )


def leaves(streams: Streams, *, gradients: bool) -> Streams:
    """Return detached MSA and pair streams that require gradients or not, with their unchanged masks."""
    msa, pair, *masks = streams
    msa, pair = (each.detach().requires_grad_(gradients) for each in (msa, pair))
    return msa, pair, masks[0], masks[1]


def random_block(name: str, residues: int, rows: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """Return a function that runs a block of the preset `name` forward and backward on random streams of one dtype."""
    stack = evoformer(name, 1, device).to(dtype).requires_grad_(True)
    return block_pass(stack, Whole(), leaves(random_streams(name, residues, rows, dtype, device), gradients=True))


def block_pass(
    stack: EvoformerStack, run: Executor, streams: Streams, backend: str | None = None
) -> Callable[[], object]:
    """Return a function that runs the block forward, and also backward if the streams require gradients.

    The function returns the new streams, or the gradients of both streams and all parameters. `run` is the executor.
    `backend` forces the operators' backend, such as "reference"; None lets each operator choose.
    """
    action = module_pass(stack, partial(stack, run, *streams), streams)

    def run_block() -> object:
        with forced(backend) if backend is not None else nullcontext():
            return action()

    return run_block


def block_flops(residues: int, rows: int, name: str = "model_1", *, gradients: bool = False) -> int:
    """Return PyTorch's count of the FLOPs of a block's forward pass, or with `gradients` of forward and backward pass.

    `name` is the preset. The block is run on meta tensors, so nothing is computed.
    """
    meta = torch.device("meta")
    stack = evoformer(name, 1, meta).requires_grad_(gradients)
    inputs = leaves(random_streams(name, residues, rows, torch.float32, meta), gradients=gradients)
    with FlopCounterMode(display=False) as counter, forced("reference"), torch.set_grad_enabled(gradients):
        outputs = stack(Whole(), *inputs)
        if gradients:
            # `torch.autograd.grad` cannot be used, because the counter's hooks on modules fail in it.
            torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
    return int(counter.get_total_flops())


def evoformer(name: str, blocks: int, device: torch.device) -> EvoformerStack:
    """Return a stack of `blocks` Evoformer blocks with the channels of preset `name` and small random parameters.

    It is in evaluation mode, and its parameters do not require gradients.
    """
    model = preset(name).model
    with device:
        stack = EvoformerStack(replace(model.evoformer, blocks=blocks), model.c_z).eval().requires_grad_(False)
        for parameter in stack.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
    return stack


def random_streams(name: str, residues: int, rows: int, dtype: torch.dtype, device: torch.device) -> Streams:
    """Return random MSA and pair streams with the channels of preset `name`, and masks of ones.

    Shapes are (1, rows, residues, c_m), (1, residues, residues, c_z), (1, rows, residues) and (1, residues, residues).
    """
    model = preset(name).model
    with device:
        msa = torch.randn(1, rows, residues, model.evoformer.c_m, dtype=dtype)
        pair = torch.randn(1, residues, residues, model.c_z, dtype=dtype)
        return msa, pair, torch.ones(1, rows, residues), torch.ones(1, residues, residues)
