"""Define the command `helixfold evaluate`, which compares predictions with known structures, or runs a benchmark."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.extras import require
from helixfold.apps.evaluate.options import BenchmarkOptions
from helixfold.cli.command import Command
from helixfold.runtime.options import MOST_USED, Output, changed_options
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary

_DEFAULT_OPTIONS = BenchmarkOptions()
_HELP_EXAMPLES = """more examples:
  helixfold evaluate --benchmark targets.tsv --output benchmark
      predict the targets of a table into benchmark/predictions/, and compare them
  helixfold evaluate --benchmark casp14 --data natives/ sequences.fasta alignments/
      the CASP14 domains of AlphaFold and HelixFold, next to their published means
"""
app = Command(
    name="evaluate",
    usage="helixfold evaluate PREDICTIONS REFERENCES [options]\n"
    "       helixfold evaluate --benchmark FILE [options]\n"
    "example: helixfold evaluate predictions/ references/",
    help_epilogue=_HELP_EXAMPLES,
)


@app.default
@optional_output()
def evaluate(
    predictions: Annotated[Path | None, Parameter(group=MOST_USED)] = None,
    references: Annotated[Path | None, Parameter(group=MOST_USED)] = None,
    /,
    *,
    output: Annotated[Output, Parameter(group=MOST_USED)] = Path("evaluation"),
    all_ranks: Annotated[bool, Parameter(group=MOST_USED)] = False,
    options: BenchmarkOptions = _DEFAULT_OPTIONS,
    command: Annotated[tuple[str, ...], Parameter(parse=False)] = (),
) -> int:
    """Compare predictions with known structures: lDDT, TM-score, GDT and RMSD; for complexes also DockQ, interface lDDT
    and interface TM-score. With --benchmark, predict the targets of a table first; run the command again to resume.

    Predictions and references are matched by name (T1031 with T1031-D1 and T1031-D2, 1abc_A with chain A of 1abc) or
    else by sequence. Residues are matched by sequence, not by number.

    Parameters
    ----------
    predictions
        Output directory of `helixfold predict`, or a structure file, or a directory of structure files.
    references
        Known structures, PDB or mmCIF (.gz too): a directory or one file.
    output
        Output directory for tables and plot, and for the predictions of a benchmark.
    all_ranks
        Compare all predictions of each target, not only the highest-ranked one.
    """
    require("evaluate", "biotite", action="helixfold evaluate")
    if output.exists() and not output.is_dir():
        raise InputError.at(output, "is a file; pass a directory to --output")
    if options.benchmark is not None:
        if predictions is not None:
            raise InputError(
                f"{printable(str(predictions))} cannot be combined with --benchmark, which makes the "
                "predictions and takes references from its table or --data"
            )
        return _run_benchmark(options.benchmark, output, options, command, all_ranks=all_ranks)
    if names := changed_options(options):
        raise InputError(f"{names[0]} requires --benchmark; without it, nothing is predicted")
    if predictions is None or references is None:
        raise InputError("pass PREDICTIONS and REFERENCES, or a --benchmark (see helixfold evaluate --help)")
    return _compare(predictions, references, output, all_ranks=all_ranks)


def _compare(predictions: Path, references: Path, output: Path, *, all_ranks: bool) -> int:
    """Compare predictions with references, write the results, and return the exit code."""
    from helixfold.analysis.compare_files import compare_files
    from helixfold.apps.evaluate.results import complex_table, screen_table, write_evaluation
    from helixfold.report.evaluation_plot import evaluation_plot
    from helixfold.results.driver import driven
    from helixfold.results.find import find_predictions
    from helixfold.results.packed import readable_structures
    from helixfold.results.writing import write_file

    with readable_structures(predictions) as structures:
        compared = compare_files(find_predictions(structures, all_ranks=all_ranks), references)
    if compared.results:
        print_summary("\n".join([*screen_table(compared.results), *complex_table(compared.results)]))
        if unused := compared.unused:
            print_note(f"no prediction for {_listed(unused)}")
    with driven(output, "prediction", compared.count) as run:
        run.skip(compared.count - len(compared.failures))
        for name, why in compared.failures.items():
            run.fail(name, why)
        if compared.results:
            write_evaluation(output, compared.results, compared.failures, compared.unused)
            write_file(output / "scores.png", evaluation_plot(compared.results))
            print_summary(f"-> {output}")
    return run.exit_code


def _run_benchmark(
    name: str, output: Path, options: BenchmarkOptions, command: tuple[str, ...], *, all_ranks: bool
) -> int:
    """Predict the targets of a benchmark and compare them; return the exit code."""
    from helixfold.apps.evaluate.benchmark_data import find_data
    from helixfold.apps.evaluate.benchmark_table import read_benchmark
    from helixfold.apps.evaluate.compare import compare_benchmark
    from helixfold.apps.evaluate.tables import benchmark_lines, write_benchmark
    from helixfold.apps.search_plan import with_site_sources
    from helixfold.cli.predict import predict_on_devices
    from helixfold.parallel.worker_group import is_under_torchrun
    from helixfold.results.driver import driven
    from helixfold.results.failures import SERVER_UNAVAILABLE, SOME_FAILED

    if is_under_torchrun():
        raise InputError("a benchmark cannot run under torchrun; use --devices for several devices")
    benchmark = find_data(read_benchmark(name), options.data)
    if missing := benchmark.missing:
        text = f"{len(missing)} of {benchmark.table.structures} structures left out: {_listed(list(missing))}"
        print_note(f"{text}; {next(iter(missing.values()))}")
    predictions, targets = output / "predictions", [each.target for each in benchmark.targets]
    options = with_site_sources(options, targets)
    code = predict_on_devices(options.predict_options(predictions, command), targets)
    if code not in (0, SOME_FAILED, SERVER_UNAVAILABLE):
        return code
    with driven(output, "target", len(targets), options.progress) as run:
        comparison = compare_benchmark(benchmark, predictions, run, all_ranks=all_ranks)
        if comparison.results:
            write_benchmark(output, benchmark, comparison)
            print_summary("\n".join(["", *benchmark_lines(benchmark, comparison), f"-> {output}"]))
    return code or run.exit_code


def _listed(names: list[str]) -> str:
    """Return the first names of a list as text, and how many more it has."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(printable(name, 40) for name in names[:10]) + more
