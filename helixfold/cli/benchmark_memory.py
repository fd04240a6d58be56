"""`helixfold benchmark memory`: what several Evoformer blocks without gradients take beside their streams."""

import argparse
import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from helixfold.cli.benchmark_block import evoformer, random_streams
from helixfold.cli.benchmark_timing import measure_once
from helixfold.cli.sizes import positive
from helixfold.execution.allocator import freed_memory_kept, freed_memory_returned
from helixfold.execution.slabs import Slabs

CPU = torch.device("cpu")
# What the C library does with freed memory: as it comes, as the commands set it, and as it takes the least.
ALLOCATORS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "as it comes": nullcontext,
    "kept": freed_memory_kept,
    "returned": freed_memory_returned,
}


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


def measure_memory(residues: int, rows: int, dtype: str, blocks: int, allocator: str) -> PeakMemory:
    """Peak memory of `blocks` Evoformer blocks of model_1's size by the `Slabs` executor, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(
            _measure_memory, (residues, rows, dtype, blocks, allocator), {"threads": torch.get_num_threads()}
        )


def _measure_memory(residues: int, rows: int, dtype: str, blocks: int, allocator: str, *, threads: int) -> PeakMemory:
    torch.set_num_threads(threads)
    stack, kind = evoformer("model_1", blocks, CPU), getattr(torch, dtype)
    with ALLOCATORS[allocator]():
        # What the libraries allocate once, such as the threads' buffers, is not part of the streams' cost.
        stack(Slabs(), *random_streams("model_1", 8, 4, kind, CPU))
        sizes: list[int] = []

        def run() -> None:
            streams = random_streams("model_1", residues, rows, kind, CPU)
            sizes.extend(each.nbytes for each in streams[:2])
            stack(Slabs(), *streams)

        cost = measure_once(run, CPU, repeats=1)
    msa, pair = sizes
    return PeakMemory(pair=pair, msa=msa, peak=cost.memory, seconds=cost.seconds)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--residues", type=positive, default=512)
    parser.add_argument("--rows", type=positive, default=128, help="of the MSA")
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--allocators", nargs="+", choices=list(ALLOCATORS), default=list(ALLOCATORS))
    parser.set_defaults(run=_print)


def _print(options: argparse.Namespace) -> int:
    print(f"Evoformer without gradients in slabs, 2 blocks, {options.residues} residues, {options.rows} rows; MiB")
    columns = f"{'pair':>8} {'MSA':>8} {'peak':>8} {'(peak - MSA) / pair':>20} {'seconds':>8}"
    print(f"{'dtype':10} {'freed memory':12} {columns}")
    for dtype in options.dtypes:
        for allocator in options.allocators:
            found = measure_memory(options.residues, options.rows, dtype, blocks=2, allocator=allocator)
            sizes = " ".join(f"{size / 2**20:8.1f}" for size in (found.pair, found.msa, found.peak))
            row = f"{sizes} {found.pairs_beside_msa:20.2f} {found.seconds:8.1f}"
            print(f"{dtype:10} {allocator:12} {row}", flush=True)
    return 0
