"""Measure rates of a feature store: building, rebuilding and reading it, beside reading the files it was built from."""

import os
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from data_pipeline.datasets.build import BuildOptions, build_store
from data_pipeline.datasets.chains import ChainFilter
from data_pipeline.datasets.record_builder import RecordBuilder
from data_pipeline.datasets.source_files import AlignmentDirectory, find_structures
from data_pipeline.datasets.store import DATABASE_FILE, FeatureStore
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.structures import read_structure
from helixfold.annotations import Parameter
from helixfold.execution.stages import mean_seconds
from helixfold.options import Directory, Integer


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
    """Build a store of all chains in a temporary directory, read everything in it once, and print its rates."""
    paths = find_structures(options.structures)
    directory = None if options.alignments is None else AlignmentDirectory(options.alignments)
    builder = RecordBuilder(filter=ChainFilter(), alignments=directory)
    # Keeps none of the items that it takes.
    consume = partial(deque[object], maxlen=0)
    with tempfile.TemporaryDirectory() as temporary:
        build = BuildOptions(structures=options.structures, output=Path(temporary), workers=options.workers)
        start = time.perf_counter()
        report = build_store(build, builder)
        seconds = {"build": time.perf_counter() - start}
        seconds["build again, all is there"] = mean_seconds(lambda: build_store(build, builder))
        store = FeatureStore.open(temporary)
        names = [entry.name for entry in store.entries]
        found = [directory.find(name) for name in names] if directory else []
        files = [file for results in found if results for file in results.alignments]

        def read_files() -> None:
            consume(map(read_structure, paths))
            consume(read_alignment(file.path, max_rows=file.max_rows) for file in files)

        # A loader without a store would read structures and alignments like this at every use.
        seconds["read the files"] = mean_seconds(read_files)
        seconds["load from the store"] = mean_seconds(lambda: consume(map(store.load, names)))
        seconds["load labels only"] = mean_seconds(lambda: consume(map(store.labels, names)))
        size = os.path.getsize(Path(temporary, DATABASE_FILE)) / 1e6
    structures, alignments = _size(paths) / 1e6, _size(file.path for file in files) / 1e6
    share, each = size / max(structures + alignments, 1e-6), 1e3 * size / max(report.chains, 1)
    print(
        f"{report.chains} chains ({len(report.failed)} failed): structures {structures:.1f} MB and alignments "
        f"{alignments:.1f} MB become a store of {size:.1f} MB ({share:.0%}, {each:.1f} kB per chain)"
    )
    print(f"{'':28} {'seconds':>8} {'chains/s':>9}")
    for what, taken in seconds.items():
        print(f"{what:28} {taken:8.2f} {report.chains / taken:9.0f}")


def _size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
