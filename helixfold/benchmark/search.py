"""Measure how much faster MMseqs2 searches a database of clusters for a batch of targets than for one after another."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from data_pipeline.errors import SearchError
from data_pipeline.processors import available_processors
from data_pipeline.search.cluster_build import ClusterBuild
from data_pipeline.search.colabfold_databases import ClusterDatabase
from data_pipeline.search.colabfold_search import ColabfoldSearch, MmseqsBatch
from data_pipeline.search.mmseqs_program import OLDEST_FOR_CLUSTERS, mmseqs_release, require_mmseqs
from data_pipeline.search.process import working_directory
from helixfold.annotations import Parameter
from helixfold.options import Positive, Workers

_AMINO_ACIDS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
_KEPT = 0.6  # of a target's residues, in its relatives


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchBenchmarkOptions:
    """Options of `helixfold benchmark search`."""

    targets: Positive = 200
    """Targets of the batch."""
    single: Positive = 10
    """Number of them that are also searched one after another, which stands for all of them."""
    residues: Positive = 150
    """Residues of each target."""
    relatives: Positive = 20
    """Relatives of each target in the database."""
    threads: Annotated[Workers | None, Parameter(show_default="all processors")] = None
    """Threads of MMseqs2."""


_USUAL = SearchBenchmarkOptions()


def run(options: SearchBenchmarkOptions = _USUAL) -> None:
    """Search a database of made families for all targets at once and for some of them alone, and print the ratio.

    Raise `SearchError` if the results differ.
    """
    program, cpus = require_mmseqs(OLDEST_FOR_CLUSTERS), options.threads or available_processors()
    single = min(options.single, options.targets)
    rng = np.random.default_rng(0)
    letters = rng.choice(_AMINO_ACIDS, (options.targets, options.residues))
    targets = [row.tobytes().decode() for row in letters]
    with working_directory() as directory:
        fasta, prefix = directory / "all.fasta", directory / "uniref30_made_db"
        _write_relatives(fasta, letters, options.relatives, rng)
        count = ClusterBuild(program=program, single_step=True, cpus=cpus).clusters([fasta], prefix)
        search = ColabfoldSearch(batch=MmseqsBatch(program=program, cpus=cpus), uniref=ClusterDatabase(prefix))
        start = time.perf_counter()
        together = search.search_many(targets)
        batch = time.perf_counter() - start
        start = time.perf_counter()
        alone = [search.search(target) for target in targets[:single]]
        each = (time.perf_counter() - start) / single
    if alone != together[:single]:
        raise SearchError("a batch has other results than single searches")
    release = mmseqs_release(program)
    name = "a development version" if release is None else f"release {release}"
    print(
        f"MMseqs2 {name}, {cpus} threads, {count:,} sequences; {options.targets} targets of {options.residues} residues"
    )
    print(f"one after another (from {single}): {each * options.targets:.1f} s; together: {batch:.1f} s")
    print(f"ratio: {each * options.targets / batch:.1f}")


def _write_relatives(path: Path, targets: np.ndarray, relatives: int, rng: np.random.Generator) -> None:
    with path.open("w") as file:
        for number, target in enumerate(targets):
            for index in range(relatives):
                kept = rng.random(len(target)) < _KEPT
                sequence = np.where(kept, target, rng.choice(_AMINO_ACIDS, len(target)))
                file.write(f">t{number}x{index}\n{sequence.astype(np.uint8).tobytes().decode()}\n")
