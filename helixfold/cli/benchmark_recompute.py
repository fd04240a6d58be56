"""`helixfold benchmark recompute`: memory and time of a training pass by what it keeps for its gradients."""

import argparse
import multiprocessing
import statistics
import time
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from data_pipeline.transforms.training import initial_training
from helixfold.batch import Batch
from helixfold.cli.benchmark_inputs import random_batch
from helixfold.cli.benchmark_timing import peak_of
from helixfold.cli.sizes import positive
from helixfold.device import pick_device
from helixfold.execution.recompute import Keep, RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.inference import DTYPES
from helixfold.model.alphafold import AlphaFold
from helixfold.presets import PRESETS, Preset, preset

VARIANTS = typing.get_args(Keep)


@dataclass(frozen=True, kw_only=True)
class PassSize:
    """The network of a preset, with so many Evoformer blocks, and the size of what it reads."""

    preset: str
    blocks: int
    crop: int
    dtype: str
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """What forward and backward of one sample take; `memory` in bytes beyond parameters and their gradients."""

    seconds: float
    memory: int

    def with_more_blocks(self, fewer: "PassCost", step: int, more: int) -> "PassCost":
        """What `more` further blocks will take, if they grow as from `fewer` to this, which has `step` blocks more."""
        return PassCost(
            seconds=self.seconds + more * (self.seconds - fewer.seconds) / step,
            memory=self.memory + more * (self.memory - fewer.memory) // step,
        )


def measure_pass(size: PassSize, keep: Keep, repeats: int) -> PassCost:
    """Median time of several passes and the peak memory of one more, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure_pass, (size, keep, repeats, torch.get_num_threads()))


def _measure_pass(size: PassSize, keep: Keep, repeats: int, threads: int) -> PassCost:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = pick_device(size.device)
    network = preset(size.preset)
    config = replace(network.model, evoformer=replace(network.model.evoformer, blocks=size.blocks))
    model = AlphaFold(config).to(device).train()
    recompute(model, RecomputeConfig.everywhere(keep))
    # Gradients, and what libraries allocate once, are there before anything is counted.
    _forward_and_backward(model, _batch(network, 8, device), size.dtype)
    batch = _batch(network, size.crop, device)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        _forward_and_backward(model, batch, size.dtype)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    memory = peak_of(lambda: _forward_and_backward(model, batch, size.dtype), device)
    return PassCost(seconds=statistics.median(seconds), memory=memory)


def _forward_and_backward(model: AlphaFold, batch: Batch, dtype: str) -> None:
    """A training pass with a loss that costs next to nothing and reads all outputs."""
    outputs = model(Whole(), [batch], None, DTYPES[dtype])
    torch.stack([each.float().square().mean() for each in _tensors(outputs) if each.requires_grad]).sum().backward()


def _tensors(outputs: Any) -> Iterator[Tensor]:
    for field in fields(outputs):
        value = getattr(outputs, field.name)
        if is_dataclass(value):
            yield from _tensors(value)
        elif value is not None:
            yield value


def _batch(network: Preset, residues: int, device: torch.device) -> Batch:
    """One sample as deep as the alignments that this network is trained with."""
    sampling = network.sampling if network.name == "tiny" else initial_training().sampling
    templates = network.sampling.max_templates
    return random_batch(residues, sampling.max_msa_clusters, sampling.max_extra_msa, templates, device)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--presets", nargs="+", choices=list(PRESETS), default=["tiny", "model_1"])
    parser.add_argument("--crop", type=positive, default=128, metavar="N", help="residues")
    parser.add_argument(
        "--blocks",
        type=positive,
        default=4,
        metavar="N",
        help="of the Evoformer that are measured; more follow by growth",
    )
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda")
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="passes; their median time counts")
    parser.set_defaults(run=_print)


def _print(options: argparse.Namespace) -> int:
    print(f"forward and backward of one sample, dropout on, {options.crop} residues, {torch.get_num_threads()} threads")
    print("memory is beyond parameters and gradients; ratios are to recomputing nothing")
    for name in options.presets:
        _print_preset(name, options)
    return 0


def _print_preset(name: str, options: argparse.Namespace) -> None:
    whole = preset(name).model.evoformer.blocks
    blocks = min(whole, max(2, options.blocks))
    columns, further = f"{'MiB':>8} {'ratio':>6} {'seconds':>8} {'ratio':>6}", ""
    if blocks < whole:
        further = f"   all {whole}: {columns}"
    print(
        f"\n{name}, {blocks} of {whole} Evoformer blocks"
        + ("; what all need follows from the growth" if further else "")
    )
    print(f"{'dtype':10} {'recompute':9} {columns}{further}")
    for dtype in options.dtypes:
        size = PassSize(preset=name, blocks=blocks, crop=options.crop, dtype=dtype, device=options.device)
        plain: tuple[PassCost, ...] = ()
        for keep in VARIANTS:
            costs = [measure_pass(size, keep, options.repeats)]
            if blocks < whole:
                fewer = measure_pass(replace(size, blocks=blocks // 2), keep, options.repeats)
                costs.append(costs[0].with_more_blocks(fewer, blocks - blocks // 2, whole - blocks))
            plain = plain or tuple(costs)
            rows = (_row(cost, reference) for cost, reference in zip(costs, plain, strict=True))
            print(f"{dtype:10} {keep:9} {'           '.join(rows)}", flush=True)


def _row(cost: PassCost, plain: PassCost) -> str:
    memory = f"{cost.memory / 2**20:8.0f} {cost.memory / plain.memory:6.2f}"
    return f"{memory} {cost.seconds:8.2f} {cost.seconds / plain.seconds:6.2f}"
