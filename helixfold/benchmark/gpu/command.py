"""`python scripts/benchmark.py gpu`: everything that is to be known of one GPU, part by part.

It reads its options with argparse and needs only PyTorch, Triton, NumPy, einops and jaxtyping, as a machine that is
lent for an hour has them.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from helixfold.benchmark.gpu.parts import PARTS, TINY, Sizes, measured
from helixfold.benchmark.gpu.trace import write_traces
from helixfold.benchmark.machine import BenchmarkDevice
from helixfold.benchmark.model import PEERS
from helixfold.benchmark.ops import PACKAGES
from helixfold.benchmark.options import CommonOptions
from helixfold.benchmark.table import Readings, show
from helixfold.benchmark.timing import PLAIN
from helixfold.execution.device import pick_device

_PEERS = {*PACKAGES, *PEERS.values()}
_OURS = ("ours", "whole", "slabs", "spilled")


def main(words: Sequence[str]) -> int:
    """Measure what the words of the command line ask for; return the exit code.

    Wrong words end the process with one sentence and exit code 2.
    """
    parser = argparse.ArgumentParser(prog="benchmark.py gpu", description="Measure one GPU, part by part.")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts, all if not given")
    parser.add_argument("--dtypes", nargs="+", choices=("bfloat16", "float32"), default=["bfloat16"])
    parser.add_argument("--repeats", type=int, help="readings, of which the median counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the readings there, again after each")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="only profile a block and a training step, into DIR")
    parser.add_argument("--tiny", action="store_true", help="small sizes on whatever device there is, for a trial")
    given = parser.parse_args(words)
    if not given.tiny and not torch.cuda.is_available():
        parser.error("there is no GPU that PyTorch can use; --tiny tries the command on a CPU")
    if given.repeats is not None and given.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {given.repeats}")
    sizes = TINY if given.tiny else Sizes()
    device = pick_device("cuda" if torch.cuda.is_available() else "cpu")
    if given.trace is not None:
        for path in write_traces(given.trace, sizes, getattr(torch, given.dtypes[0]), device):
            print(f"wrote {path}")
        return 0
    common = CommonOptions(device=str(device), dtypes=tuple(given.dtypes), repeats=given.repeats, json=given.json)
    machine, made = show(partial(measured, given.part, sizes, common), common)
    print("\n".join(summary(made, machine)))
    return 0


def summary(made: Sequence[Readings], machine: BenchmarkDevice) -> Iterator[str]:
    """Yield a line for each reading: our fastest way beside the plain one and the fastest peer."""
    yield ""
    yield f"{'':112} {'ours, ms':>10} {'of best':>8} {'to plain':>9} {'to peer':>8}"
    for reading in made:
        rows = {by: row for by in reading.costs if (row := reading.row(by, machine))["seconds"] is not None}
        ours = [row for by, row in rows.items() if by.startswith(_OURS)]
        peers = [row["seconds"] for by, row in rows.items() if by in _PEERS]
        title = f"{reading.name[:90]:90} {reading.passes:21}"
        if not ours:
            yield f"{title} {'failed':>10}"
            continue
        best = min(ours, key=lambda row: row["seconds"])
        plain = rows.get(PLAIN)
        ratios = [plain["seconds"] if plain else None, min(peers, default=None)]
        share = f"{best['share_of_product']:8.0%}" if best["share_of_product"] else f"{'-':>8}"
        times = [f"{other / best['seconds']:7.2f}x" if other else f"{'-':>8}" for other in ratios]
        yield f"{title} {1e3 * best['seconds']:10.3f} {share} {times[0]:>9} {times[1]}"
