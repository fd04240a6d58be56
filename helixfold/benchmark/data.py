"""Measure rates of a feature store: building, rebuilding and reading it, beside reading the files it was built from."""

import os
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cyclopts import Parameter

from data_pipeline.datasets.build import BuildOptions, build_store
from data_pipeline.datasets.chains import ChainFilter
from data_pipeline.datasets.record_builder import RecordBuilder
from data_pipeline.datasets.source_files import AlignmentDirectory, find_structures
from data_pipeline.datasets.store import DATABASE_FILE, FeatureStore
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.structures import read_structure
from helixfold.execution.stages import mean_seconds
from helixfold.options import Directory, Integer


@dataclass(frozen=True, kw_only=True)
class StoreRates:
    """Sizes in bytes and times in seconds of a feature store and of the files that it was built from."""

    chains: int
    failed: int
    structure_bytes: int  # size of the files on disk, compressed or not
    alignment_bytes: int
    store_bytes: int
    seconds: dict[str, float]  # by what was timed, such as "build"


def store_rates(structures: Path, alignments: Path | None = None, *, workers: int = 1) -> StoreRates:
    """Build a store of all chains in a temporary directory, read everything in it once, and return its rates.

    `workers` is the number of processes that build.
    """
    paths = find_structures(structures)
    directory = None if alignments is None else AlignmentDirectory(alignments)
    builder = RecordBuilder(filter=ChainFilter(), alignments=directory)
    with tempfile.TemporaryDirectory() as temporary:
        options = BuildOptions(structures=structures, output=Path(temporary), workers=workers)
        start = time.perf_counter()
        report = build_store(options, builder)
        build = time.perf_counter() - start
        build_again = mean_seconds(lambda: build_store(options, builder))
        store = FeatureStore.open(temporary)
        names = [entry.name for entry in store.entries]
        found = [directory.find(name) for name in names] if directory else []
        files = [file for results in found if results for file in results.alignments]
        # Keeps none of the items that it takes.
        consume = partial(deque[object], maxlen=0)

        def read_files() -> None:
            consume(map(read_structure, paths))
            consume(read_alignment(file.path, max_rows=file.max_rows) for file in files)

        return StoreRates(
            chains=report.chains,
            failed=len(report.failed),
            structure_bytes=_size(paths),
            alignment_bytes=_size(file.path for file in files),
            store_bytes=os.path.getsize(Path(temporary, DATABASE_FILE)),
            seconds={
                "build": build,
                "build again, all is there": build_again,
                # A loader without a store would read structures and alignments like this at every use.
                "read the files": mean_seconds(read_files),
                "load from the store": mean_seconds(lambda: consume(map(store.load, names))),
                "load labels only": mean_seconds(lambda: consume(map(store.labels, names))),
            },
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of `helixfold benchmark data`."""

    structures: Directory
    """Structures, as for `helixfold features`."""
    alignments: Directory | None = None
    """Alignments, as for `helixfold features`."""
    workers: Integer = 1
    """Processes that build the store."""


def run(options: DataOptions) -> None:
    """Measure the rates of a feature store and print them."""
    print_store_rates(store_rates(options.structures, options.alignments, workers=options.workers))


def print_store_rates(rates: StoreRates) -> None:
    """Print the rates as the table of `helixfold benchmark data`."""
    structures, alignments, store = (
        size / 1e6 for size in (rates.structure_bytes, rates.alignment_bytes, rates.store_bytes)
    )
    share, each = store / max(structures + alignments, 1e-6), 1e3 * store / max(rates.chains, 1)
    print(
        f"{rates.chains} chains ({rates.failed} failed): structures {structures:.1f} MB and alignments "
        f"{alignments:.1f} MB become a store of {store:.1f} MB ({share:.0%}, {each:.1f} kB per chain)"
    )
    print(f"{'':28} {'seconds':>8} {'chains/s':>9}")
    for what, seconds in rates.seconds.items():
        print(f"{what:28} {seconds:8.2f} {rates.chains / seconds:9.0f}")


def _size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
