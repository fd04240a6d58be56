"""Profile an Evoformer block and a training step: a table of kernels, and a trace for a browser."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from helixfold.benchmark.block import evoformer, random_streams
from helixfold.benchmark.gpu.parts import Sizes
from helixfold.benchmark.step import SIZES, training_parts
from helixfold.execution.recompute import RecomputeConfig
from helixfold.execution.stages import synchronize
from helixfold.execution.whole import Whole

_ROWS = 60


def write_traces(directory: Path, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> list[Path]:
    """Write `block.txt`, `block.json.gz`, `step.txt` and `step.json.gz` to the directory, and return their paths.

    Each is of one call after two that are not recorded. chrome://tracing and ui.perfetto.dev open the `.json.gz`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in (("block", _block), ("step", _step)):
        written += _write(directory / name, make(sizes, dtype, device), device)
    return written


def _write(path: Path, action: Callable[[], object], device: torch.device) -> list[Path]:
    for _ in range(2):
        action()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    synchronize(device)
    with profile(activities=activities) as found:
        action()
        synchronize(device)
    table, trace = path.with_suffix(".txt"), path.with_suffix(".json.gz")
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    table.write_text(found.key_averages().table(sort_by=order, row_limit=_ROWS, max_name_column_width=80) + "\n")
    found.export_chrome_trace(str(trace))
    return [table, trace]


def _block(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    stack = evoformer(sizes.preset, 1, device).to(dtype).requires_grad_(True)
    msa, pair, *masks = random_streams(sizes.preset, *sizes.blocks[0], dtype, device)
    leaves = [msa.requires_grad_(), pair.requires_grad_(), *stack.parameters()]

    def both() -> object:
        outputs = stack(Whole(), msa, pair, *masks)
        return torch.autograd.grad(outputs, leaves, [torch.ones_like(each) for each in outputs])

    return both


def _step(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    network, example, _ = SIZES[sizes.stages[0]]
    crop = sizes.step.residues or example.crop_size
    rows = sizes.step.rows or example.sampling.max_msa_clusters
    shape = crop, rows, example.sampling.max_extra_msa, example.sampling.max_templates
    # What `auto` chooses where it fits; on a card with less memory, blocks are recomputed.
    keep = RecomputeConfig.everywhere(sizes.policies[0])
    parts = training_parts(network, keep, shape, dtype, device)
    return lambda: [part() for part in parts.values()]
