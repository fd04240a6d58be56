"""`helixfold benchmark`: speed and memory of the Evoformer on this machine, with what they are measured against."""

import argparse
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from helixfold.cli.benchmark_data import add_store_benchmark
from helixfold.cli.benchmark_loader import add_loader_benchmark
from helixfold.cli.benchmark_optimizer import add_optimizer_benchmark
from helixfold.cli.benchmark_recompute import add_recompute_benchmark
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.inference import DTYPES
from helixfold.model.evoformer import EvoformerStack
from helixfold.model.update import Executor
from helixfold.presets import preset
from helixfold.stages import peak_memory, reset_peak_memory

REPEATS = 5
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Bytes that a no-grad Evoformer took beyond what the process held before its streams were made."""

    pair: int
    msa: int
    peak: int
    seconds: float

    @property
    def pairs_beside_msa(self) -> float:
        """The peak less the MSA, in pair tensors; two are the floor: the stream and one context."""
        return (self.peak - self.msa) / self.pair


def measure_memory(residues: int, rows: int, dtype: str, blocks: int) -> PeakMemory:
    """Peak memory of `blocks` Evoformer blocks of model_1's size by the `Slabs` executor, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure_memory, (residues, rows, dtype, blocks))


def _measure_memory(residues: int, rows: int, dtype: str, blocks: int) -> PeakMemory:
    stack = _stack(blocks)
    # What the libraries allocate once, such as the threads' buffers, is not part of the streams' cost.
    stack(Slabs(), *_streams(8, 4, DTYPES[dtype]))
    reset_peak_memory(CPU)
    start = peak_memory(CPU)
    streams = _streams(residues, rows, DTYPES[dtype])
    began = time.perf_counter()
    stack(Slabs(), *streams)
    seconds = time.perf_counter() - began
    return PeakMemory(pair=streams[1].nbytes, msa=streams[0].nbytes, peak=peak_memory(CPU) - start, seconds=seconds)


def measure_block(residues: int, rows: int, run: Executor, dtype: torch.dtype) -> float:
    """Seconds of one block's forward pass without gradients: the median of several, after a warm-up."""
    stack, streams = _stack(1), _streams(residues, rows, dtype)
    with torch.no_grad():
        return _median_seconds(lambda: stack(run, *streams))


def measure_product(dtype: torch.dtype, size: int = 2048) -> float:
    """FLOP per second of a large matrix product: what this machine can do at best."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return 2 * size**3 / _median_seconds(lambda: a @ b)


def block_flops(residues: int, rows: int) -> int:
    """Floating-point operations of one block's forward pass, as PyTorch counts them; nothing is computed."""
    with torch.device("meta"):
        stack, streams = _stack(1), _streams(residues, rows, torch.float32)
    with FlopCounterMode(display=False) as counter:
        stack(Whole(), *streams)
    return int(counter.get_total_flops())


def _stack(blocks: int) -> EvoformerStack:
    """Blocks of model_1's size with small random parameters."""
    model = preset("model_1").model
    stack = EvoformerStack(replace(model.evoformer, blocks=blocks), model.c_z).eval().requires_grad_(False)
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return stack


def _streams(residues: int, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """MSA, pair and their masks."""
    model = preset("model_1").model
    msa = torch.randn(1, rows, residues, model.evoformer.c_m, dtype=dtype)
    pair = torch.randn(1, residues, residues, model.c_z, dtype=dtype)
    return msa, pair, torch.ones(1, rows, residues), torch.ones(1, residues, residues)


def _median_seconds(action: Callable[[], object]) -> float:
    action()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold benchmark` to the command line."""
    parser = commands.add_parser("benchmark", help="speed and memory of the Evoformer, and of training")
    parts = parser.add_subparsers(title="what to measure", required=True, metavar="PART")
    for name, function, summary in (
        ("memory", _print_memory, "peak memory of a no-grad Evoformer, in a process of its own"),
        ("block", _print_block, "one Evoformer block, forward, beside this machine's rate for matrix products"),
    ):
        part = parts.add_parser(name, help=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        part.add_argument("--residues", type=int, default=512 if name == "memory" else 256)
        part.add_argument("--rows", type=int, default=128, help="of the MSA")
        part.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
        part.set_defaults(run=function)
    add_store_benchmark(parts)
    add_loader_benchmark(parts)
    add_recompute_benchmark(parts)
    add_optimizer_benchmark(parts)


def _print_memory(options: argparse.Namespace) -> int:
    _print_machine()
    print(f"Evoformer without gradients, 2 blocks, {options.residues} residues, {options.rows} rows; MiB")
    print(f"{'dtype':10} {'pair':>8} {'MSA':>8} {'peak':>8} {'(peak - MSA) / pair':>20} {'seconds':>8}")
    for dtype in options.dtypes:
        found = measure_memory(options.residues, options.rows, dtype, blocks=2)
        sizes = " ".join(f"{size / 2**20:8.1f}" for size in (found.pair, found.msa, found.peak))
        print(f"{dtype:10} {sizes} {found.pairs_beside_msa:20.2f} {found.seconds:8.1f}")
    return 0


def _print_block(options: argparse.Namespace) -> int:
    _print_machine()
    flops = block_flops(options.residues, options.rows)
    print(f"one block forward, {options.residues} residues, {options.rows} rows, {flops / 1e9:.1f} GFLOP")
    print(f"{'dtype':10} {'executor':9} {'seconds':>8} {'GFLOP/s':>9} {'of a matrix product':>20}")
    for dtype in options.dtypes:
        best = measure_product(DTYPES[dtype])
        for run in (Whole(), Slabs()):
            seconds = measure_block(options.residues, options.rows, run, DTYPES[dtype])
            rate = flops / seconds
            print(f"{dtype:10} {type(run).__name__:9} {seconds:8.2f} {rate / 1e9:9.1f} {rate / best:20.0%}")
    return 0


def _print_machine() -> None:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, {versions}")
