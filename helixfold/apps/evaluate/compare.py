"""Compare predictions of a benchmark's targets with experimental structures."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.io.errors import InputError
from data_pipeline.io.npz import read_npz
from data_pipeline.parse.fasta import directory_name
from data_pipeline.parse.structures import read_structure
from helixfold.analysis.benchmark_groups import Group, TargetSize, grouped
from helixfold.analysis.compare_files import compare
from helixfold.analysis.evaluation import Evaluated
from helixfold.analysis.matching import Match, by_name
from helixfold.apps.evaluate.benchmark_data import Benchmark
from helixfold.results.driver import Run
from helixfold.results.failures import failures_in
from helixfold.results.file_table import FEATURES, RANKING
from helixfold.results.find import find_predictions


@dataclass(frozen=True, kw_only=True)
class BenchmarkResults:
    """Scores of a benchmark's predictions, and the failures of targets that could not be predicted or compared."""

    results: list[Evaluated]
    sizes: dict[str, TargetSize]  # by target
    failures: dict[str, str]

    @property
    def groups(self) -> list[Group]:
        """Return the mean scores over all targets, and by length and MSA depth."""
        return grouped(self.results, self.sizes)


def compare_benchmark(
    benchmark: Benchmark, predictions: Path, run: Run, *, all_ranks: bool = False
) -> BenchmarkResults:
    """Compare each target's best prediction (or all) in the directory `predictions` with its references.

    Scores equal the result of `compare_files` for the same pair of files. `run` counts one step per target, and records
    the failures, for example of a target without finished predictions.
    """
    results: list[Evaluated] = []
    sizes: dict[str, TargetSize] = {}
    not_predicted = failures_in(predictions)
    read = cache(read_structure)
    for each in benchmark.targets:
        name, directory = each.target.name, predictions / directory_name(each.target.name)
        with run.item(name):
            if not RANKING.path(directory).is_file():
                raise InputError(not_predicted.get(directory.name, "it has no finished prediction"))
            chains = each.target.sequence.split(CHAIN_SEPARATOR)
            sizes[name] = TargetSize(
                chains=len(chains),
                residues=sum(map(len, chains)),
                rows=len(read_npz(FEATURES.path(directory), names=("msa",))["msa"]),
            )
            files = [(file, read_structure(file.path)) for file in find_predictions(directory, all_ranks=all_ranks)]
            for (file, predicted), reference in product(files, each.references):
                with run.item(f"{name} and {reference.name}", 0, continues=True):
                    # Compare with the reference chain in the target's name, if it has one.
                    match = next(iter(by_name(name, [reference])), Match(reference=reference))
                    results.append(compare(replace(file, name=name), predicted, match, read(reference.path)))
    return BenchmarkResults(results=results, sizes=sizes, failures=run.failures)
